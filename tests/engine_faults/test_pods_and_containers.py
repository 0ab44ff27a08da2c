"""Faults of the engine's containers (N1), Kubernetes and Helm (K2 to K13) that can be shown without a cluster.

Both connectors get the same direct calls. The behavior of real clusters is tested on the testbed (tests/hybrid).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from support.engine import FILE, run, write_workflow
from support.engine_faults import shown, validates

GOOD = "echo done > result.txt"
KUBERNETES = "streamflow.deployment.connector.kubernetes"


def stock_helm(**keys: Any) -> Any:
    from streamflow.deployment.connector.kubernetes import Helm4Connector

    return Helm4Connector("pods", "/site", **({"chart": "chart", "releaseName": "r"} | keys))


def stock_kubernetes(**keys: Any) -> Any:
    from streamflow.deployment.connector.kubernetes import KubernetesConnector

    return KubernetesConnector("pods", "/site", files=["pods.yaml"], **keys)


def words_of_install() -> list[str]:
    from medweave_connectors.sites.helm import commands

    access = commands.Access(namespace="tenant-a", kubeconfig=None, context=None)
    chart = commands.HelmChart(reference="/c")
    return list(commands.build_install_command("r", chart, access, values=[], labels={"run": "1"}, timeout_s=60))


def stock_pod(name: str, mounts: list[tuple[str, str]] | None) -> Any:
    """Return a container of a pod as the API client returns it: volume names and mount paths."""
    volume_mounts = (
        [SimpleNamespace(name=volume, mount_path=path) for volume, path in mounts] if mounts is not None else None
    )
    return SimpleNamespace(name="worker", volume_mounts=volume_mounts)


def stock_destinations(mounts: list[tuple[str, str]] | None, path: str) -> int:
    """Return to how many of two pods stock StreamFlow sends a copy."""
    connector = stock_kubernetes()

    async def container_of(location: ExecutionLocation) -> tuple[str, Any]:
        return "worker", stock_pod(location.name, mounts)

    connector._get_container = container_of
    places = [ExecutionLocation(name=f"w-{n}:worker", deployment="pods") for n in range(2)]
    return len(asyncio.run(connector._get_effective_locations(places, path, places[0])))


def our_destinations(mounts: list[tuple[str, str]], volumes: list[dict[str, Any]], path: str) -> int:
    from medweave_connectors.sites.pods.objects.pod import parse_pod
    from medweave_connectors.sites.pods.objects.volumes import one_per_storage

    container = {"name": "worker", "volumeMounts": [{"name": name, "mountPath": at} for name, at in mounts]}
    pods = [
        parse_pod(
            {
                "metadata": {"name": f"w-{n}", "namespace": "a", "uid": f"u-{n}"},
                "spec": {"nodeName": "n", "containers": [container], "volumes": volumes},
                "status": {"phase": "Running"},
            }
        )
        for n in range(2)
    ]
    return len(one_per_storage([(pod, "worker") for pod in pods], path))


def test_n1_a_container_over_a_queue_is_refused(tmp_path: Path, stock_only: bool) -> None:
    from streamflow.deployment.connector.container import SingularityConnector
    from streamflow.deployment.connector.queue_manager import SlurmConnector
    from streamflow.deployment.future import FutureConnector

    lazy = FutureConnector("hpc", "/site", SlurmConnector, False)
    made = SingularityConnector("box", "/site", lazy, None, image="x.sif")
    shown(made.connector is lazy, "the stock guard saw a connector that is lazy")
    if stock_only:
        return
    file = FILE.replace(
        "here: {type: medweave.local",
        "hpc: {type: medweave.slurm, wraps: here, config: {}}, "
        "box: {type: singularity, wraps: hpc, workdir: /work, config: {image: x.sif}}, here: {type: medweave.local",
    )
    write_workflow(tmp_path, {"first": GOOD}, file=file)
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "deployments.box.wraps: a container deployment cannot wrap a batch system." in ended.stderr


def test_k2_an_install_replaces_the_release_of_a_killed_run(stock_only: bool) -> None:
    words = stock_helm()._get_deploy_command().split()
    shown("install" in words and "upgrade" not in words, words)
    if stock_only:
        return
    # What a killed run has left is uninstalled before: tests/unit/connectors/test_helm_run.py. A name that is taken stays an error.
    assert words_of_install()[1] == "install"


def test_k3_helm_and_the_search_for_pods_use_one_namespace(stock_only: bool) -> None:
    connector, keywords = stock_helm(), {}

    async def listed(**keys: Any) -> None:
        keywords.update(keys)

    connector.client = SimpleNamespace(list_namespaced_pod=listed)
    asyncio.run(connector._get_running_pods())
    shown("--namespace" not in connector._get_deploy_command() and keywords["namespace"] == "default", keywords)
    if stock_only:
        return
    words = words_of_install()
    assert words[words.index("--namespace") + 1] == "tenant-a"


def test_k4_copies_go_to_every_storage_once(stock_only: bool) -> None:
    empty_dirs = [("work", "/work")]
    shown(stock_destinations(empty_dirs, "/work/in") == 1, "emptyDirs of two pods are distinguished")
    shown(stock_destinations([("c", "/work/cohort")], "/work/cohort-2") == 1, "path parts are distinguished")
    with pytest.raises(TypeError) as raised:
        stock_destinations(None, "/work/in")
    shown("not iterable" in str(raised.value))
    if stock_only:
        return
    private: list[dict[str, Any]] = [{"name": "work", "emptyDir": {}}]
    claim = [{"name": "c", "persistentVolumeClaim": {"claimName": "cohort"}}]
    assert our_destinations(empty_dirs, private, "/work/in") == 2
    assert our_destinations([("c", "/work/cohort")], claim, "/work/cohort/in") == 1
    assert our_destinations([("c", "/work/cohort")], claim, "/work/cohort-2") == 2
    assert our_destinations([], [], "/work/in") == 2


def test_k5_a_binding_may_leave_the_only_container_unnamed(stock_only: bool) -> None:
    connector = stock_kubernetes()
    pod = SimpleNamespace(
        metadata=SimpleNamespace(name="w-0", deletion_timestamp=None),
        spec=SimpleNamespace(containers=[SimpleNamespace(name="worker")]),
        status=SimpleNamespace(conditions=[], pod_ip="10.0.0.1"),
    )

    async def pods() -> Any:
        return SimpleNamespace(items=[pod])

    connector._get_running_pods = pods
    result: Any = None
    try:
        result = asyncio.run(connector.get_available_locations())
    except TypeError as error:
        result = error
    shown(isinstance(result, TypeError), result)
    if stock_only:
        return
    from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector

    ours = MedweaveKubernetesConnector("pods", "/site", files=["/site/pods.yaml"])
    assert ours.container_of(None, ["worker"]) == "worker"


def test_k6_statefulsets_and_daemonsets(stock_only: bool) -> None:
    rolling = SimpleNamespace(type="RollingUpdate", rolling_update=None)
    stateful = SimpleNamespace(
        kind="StatefulSet",
        generation=1,
        spec=SimpleNamespace(update_strategy=rolling, replicas=1),
        status=SimpleNamespace(observed_generation=1),
    )
    daemons = SimpleNamespace(
        kind="DaemonSet",
        spec=SimpleNamespace(update_strategy=rolling),
        status=SimpleNamespace(desired_number_scheduled=1, updated_number_scheduled=1),
    )
    for workload in (stateful, daemons):
        result: Any = None
        try:
            result = asyncio.run(stock_kubernetes()._is_ready(workload))
        except AttributeError as error:
            result = error
        shown("update_trategy" in str(result), result)
    if stock_only:
        return
    from medweave_connectors.sites.pods.objects.workloads import find_workloads

    labels = {"app": "w"}
    expected_workloads = find_workloads(
        [
            {
                "kind": kind,
                "apiVersion": "apps/v1",
                "metadata": {"name": kind.lower()},
                "spec": {
                    "replicas": 2,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "worker"}]}},
                },
            }
            for kind in ("StatefulSet", "DaemonSet")
        ]
    )
    assert [(workload.kind, workload.containers) for workload in expected_workloads] == [
        ("StatefulSet", ("worker",)),
        ("DaemonSet", ("worker",)),
    ]


def test_k7_unrelated_pods_are_not_used(stock_only: bool) -> None:
    connector, keywords = stock_kubernetes(namespace="a"), {}

    async def listed(**keys: Any) -> None:
        keywords.update(keys)

    connector.client = SimpleNamespace(list_namespaced_pod=listed)
    asyncio.run(connector._get_running_pods())
    shown("label_selector" not in keywords, keywords)
    if stock_only:
        return
    from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector

    ours = MedweaveKubernetesConnector("pods", "/site", files=["/site/pods.yaml"])
    assert ours.selectors() == [], "without a deployment no pod is anybody's"


def test_k8_keys_of_helm_can_be_set(tmp_path: Path, stock_only: bool) -> None:
    helm = "{type: %s, workdir: /work, config: {chart: chart%s}}, here: {type"
    refused = [
        not validates(tmp_path / "helm3", f"pods: {helm % ('helm3', '')}", ours=False),
        not validates(tmp_path / "wait", f"pods: {helm % ('helm4', ', wait: true')}", ours=False),
    ]
    shown(all(refused), refused)
    if stock_only:
        return
    assert validates(tmp_path / "ours", f"pods: {helm % ('medweave.helm', ', timeout: 300')}", ours=True)


def test_k9_charts_of_registries_keep_their_address(stock_only: bool) -> None:
    address = "oci://registry.example.org/charts/segment"
    result = stock_helm(chart=address).chart
    shown(result != address, result)
    if stock_only:
        return
    from medweave_connectors.sites.helm.connector import MedweaveHelmConnector

    assert MedweaveHelmConnector("pods", "/site", chart=address).chart.reference == address


def test_k10_an_installation_has_minutes_and_not_hours(stock_only: bool) -> None:
    result = stock_helm().timeout
    shown(result == "1000m", result)
    if stock_only:
        return
    from medweave_connectors.sites.helm.connector import MedweaveHelmConnector

    assert json.loads(MedweaveHelmConnector.get_schema())["properties"]["timeout"]["default"] <= 600


def test_k12_the_buffer_of_streams_is_the_documented_one(stock_only: bool) -> None:
    from streamflow.deployment.connector.kubernetes import Helm4Connector
    from streamflow.deployment.future import FutureConnector

    lazy = FutureConnector("pods", "/site", Helm4Connector, False, chart="c")
    shown(lazy.transferBufferSize == 2**16 != stock_helm().transferBufferSize, lazy.transferBufferSize)
    if stock_only:
        return
    from medweave_connectors.sites.helm.connector import MedweaveHelmConnector

    documented = json.loads(MedweaveHelmConnector.get_schema())["properties"]["transferBufferSize"]["default"]
    assert MedweaveHelmConnector("pods", "/site", chart="/c").transferBufferSize == documented
    assert MedweaveHelmConnector.CHECKED_AT_START, "so no placeholder passes its own buffer on"


def test_k13_helm_3_and_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stock_only: bool) -> None:
    from streamflow.core.exception import WorkflowExecutionException

    (tmp_path / "helm").write_text("#!/bin/sh\necho v3.18.0\n")
    (tmp_path / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result: Any = None
    try:
        asyncio.run(stock_helm()._check_version())
    except WorkflowExecutionException as error:
        result = error
    shown("not compatible with Helm4Connector" in str(result), result)
    if stock_only:
        return
    from medweave_connectors.sites.helm import commands

    assert commands.parse_version("v3.18.0") == (3, 18)
    assert commands.parse_version("v4.0.0") == (4, 0)
