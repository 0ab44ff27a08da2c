"""Faults N4 and K1 to K13 of the engine on a real Kubernetes with real helm: on stock StreamFlow, and not with medweave."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave_connectors.host.errors import JobEndedBySite, TimeLimitExceeded
from medweave_connectors.sites.helm import commands
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from support import pod_runs
from support.both_clusters import (
    at,
    begin_helm,
    begin_stock_helm,
    chart_repository,
    connected,
    end_helm,
    name_of,
    our_helm,
    our_kubernetes,
    places,
    stock_helm,
    stock_kubernetes,
    tiny_chart,
    used_in_a_run,
)
from support.connections import cut
from support.connector_runs import JOB, Site, begin_record, run_job, schedule, used
from support.engine import Run
from support.engine_faults import outcome, shown, still_going, validates
from support.helm_release import Tenant, first_tenant, release, until
from support.pod_runs import BASE_IMAGE, PROGRESS, WORKDIR, pods_of
from support.testbed import unique

GOOD = "hostname > result.txt"
PAIR, LONE = unique("engine-faults-pair"), unique("engine-faults-lone")


@pytest.fixture(scope="module")
def tenant() -> Iterator[Tenant]:
    """Yield the account; helm and its kubeconfig are found, as on the laptop."""
    account = first_tenant()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in pod_runs.environment(account).items():
            patch.setenv(name, value)
        yield account


@dataclass(frozen=True)
class Standing:
    """Pods that stay for all tests.

    Attributes:
        pair: two of one Deployment, each with its own emptyDir at /work.
        lone: one of another Deployment, whose container has the same name and no mounts.
    """

    pair: list[str]
    lone: str


@pytest.fixture(scope="module")
def standing(tenant: Tenant) -> Iterator[Standing]:
    documents = [pods_of(PAIR, replicas=2), pods_of(LONE, replicas=1, volumeMounts=[])]
    tenant.call(
        "kubectl", "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    )
    try:
        for app in (PAIR, LONE):
            tenant.call("kubectl", "rollout", "status", f"deployment/{app}", "--timeout=90s")
        pair, lone = (
            sorted(pod["metadata"]["name"] for pod in tenant.get("pods", f"app={app}")) for app in (PAIR, LONE)
        )
        yield Standing(pair, *lone)
    finally:
        tenant.ended("kubectl", "delete", f"deployment/{PAIR}", f"deployment/{LONE}", "--wait=false")


def test_n4_a_pod_for_a_container_image_has_its_limits_on_kubernetes(tmp_path: Path, tenant: Tenant) -> None:
    from streamflow.core.deployment import DeploymentConfig, Target
    from streamflow.cwl.requirement.docker.kubernetes import KubernetesCWLDockerTranslator

    translator = KubernetesCWLDockerTranslator("/", False)
    here = Target(deployment=DeploymentConfig(name="here", type="local", config={}, workdir="/tmp"))
    made = translator.get_target(BASE_IMAGE, None, True, here).deployment
    (file,) = map(Path, made.config["files"])
    text = file.read_text()

    async def deploy() -> Any:
        stock = stock_kubernetes(tenant, file)
        error = (await outcome(stock.deploy(False))).__cause__
        await stock.undeploy(True)
        while hasattr(error, "api_exceptions"):  # a nested error of this class cannot be printed
            (error,) = error.api_exceptions
        return error

    try:
        failure = asyncio.run(deploy())
    finally:
        tenant.ended("kubectl", "delete", f"pod/{made.name}", "--ignore-not-found", "--wait=false")
        file.unlink()
    shown("violates PodSecurity" in str(failure) and "resources" not in text, (failure, text))

    # Our pods come from a chart or a file; the image that a foreign workflow names is left aside.
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump(pods_of(unique("engine-faults"), replicas=1)))
    tools = {"first": (GOOD, {"requirements": {"DockerRequirement": {"dockerPull": "nowhere.example.org/x:1"}}})}
    pod_runs.write(tmp_path, tools, kind="medweave.kubernetes", config={"files": ["pods.yaml"], "timeout": 60})
    document = yaml.safe_load((tmp_path / "streamflow.yml").read_text())
    docker = [{"step": "/", "deployment": {"type": "none", "config": {}}}]
    document["workflows"]["tiny"]["config"]["docker"] = docker
    (tmp_path / "streamflow.yml").write_text(yaml.safe_dump(document))
    ended = pod_runs.go(tmp_path, tenant, limit_s=90)
    assert ended.exit_code == 0, ended.stderr


def test_k1_pods_without_a_label_and_pods_that_are_late_on_kubernetes(tmp_path: Path, tenant: Tenant) -> None:
    bare = tiny_chart(tmp_path / "bare", labels={})
    probe = {"exec": {"command": ["test", "-e", f"{WORKDIR}/ready"]}, "periodSeconds": 1}
    late = tiny_chart(tmp_path / "late", readinessProbe=probe)
    name, stock_name, tools = unique("engine-faults"), unique("engine-faults"), {"first": GOOD}
    external = {"chart": str(late), "releaseName": name}
    with release(tenant, name, late, {}, wait=False):
        try:
            waiting = [
                begin_stock_helm(tmp_path / "1", tenant, tools, {"chart": str(bare), "releaseName": stock_name}),
                begin_stock_helm(tmp_path / "2", tenant, tools, external, external=True),
            ]
            going = [
                begin_helm(tmp_path / "3", tenant, tools, {"chart": str(bare)}),
                begin_helm(tmp_path / "4", tenant, tools, external, external=True),
            ]
            until(lambda: listed(waiting[1]) and listed(going[1]), limit_s=60, what="both have seen no ready pod")
            (pod,) = tenant.pods(name)
            until(lambda: tenant.within(pod, f"touch {WORKDIR}/ready").returncode == 0, limit_s=60, what=pod)
            for run in going:
                assert run.wait(90).exit_code == 0, run.stderr
            shown(all(still_going(run, 3, after=lambda run=run: listed(run)) for run in waiting), waiting[0].stderr)
        finally:
            tenant.ended("helm", "uninstall", stock_name, "--ignore-not-found")


def listed(run: Run) -> bool:
    return (run.folder / "listed").exists()


@dataclass(frozen=True)
class LeftOver:
    """The results of a second installation over a killed driver's release, with a file that names no namespace.

    Attributes:
        again: what stock StreamFlow says when it installs it again.
        seen: its error when it lists the pods of the first.
        second: medweave's next run.
    """

    again: Any
    seen: Any
    second: Run


@pytest.fixture(scope="module")
def left_over(tenant: Tenant, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeftOver]:
    folder = tmp_path_factory.mktemp("left")
    chart, name, stock_name = tiny_chart(folder), unique("engine-faults"), unique("engine-faults")
    config = {"chart": str(chart), "releaseName": name, "timeout": 60}

    async def stock() -> tuple[Any, Any]:
        first, second = (stock_helm(tenant, chart, stock_name) for _ in range(2))
        await first.deploy(False)
        result = await outcome(second.deploy(False)), await outcome(places(first))
        for connector in (first, second):
            await connector.undeploy(True)
        return result

    try:
        killed = begin_helm(folder / "killed", tenant, {"first": PROGRESS + "sleep 300"}, config)
        result = asyncio.run(stock())
        killed.wait_for_line("case 1/2")
        killed.signal(signal.SIGKILL)
        killed.wait()
        yield LeftOver(*result, begin_helm(folder / "second", tenant, {"first": GOOD}, config).wait(90))
    finally:
        for release in (stock_name, name):
            tenant.ended("helm", "uninstall", release, "--ignore-not-found")


def test_k2_an_install_replaces_the_release_of_a_killed_run_on_kubernetes(left_over: LeftOver) -> None:
    shown("still in use" in str(left_over.again), left_over.again)
    assert left_over.second.exit_code == 0, left_over.second.stderr
    assert "removing release" in left_over.second.stderr


def test_k3_helm_and_the_search_for_pods_use_one_namespace_on_kubernetes(tenant: Tenant, left_over: LeftOver) -> None:
    result = str(left_over.seen)
    shown("Forbidden" in result and 'namespace \\"default\\"' in result, result)
    (event,) = left_over.second.of_type("job.ended")
    assert event["data"]["site"]["namespace"] == tenant.namespace


def test_k4_copies_go_to_every_storage_once_on_kubernetes(tmp_path: Path, tenant: Tenant, standing: Standing) -> None:
    (tmp_path / "in.txt").write_text("x")
    targets = [(standing.pair, f"{WORKDIR}/in.txt"), ([standing.lone], "/tmp/in.txt")]

    async def copy(connector: Any) -> list[Any]:
        async with connected(connector):
            locations = await places(connector)
            return [
                await outcome(
                    connector.copy_local_to_remote(str(tmp_path / "in.txt"), path, [locations[pod] for pod in pods])
                )
                for pods, path in targets
            ]

    result = asyncio.run(copy(stock_kubernetes(tenant)))
    shown([type(error) for error in result] == [AttributeError, TypeError], result)
    assert asyncio.run(copy(our_kubernetes(tenant, selector=f"app in ({PAIR},{LONE})"))) == [None, None]
    for pods, path in targets:
        assert [tenant.within(pod, f"cat {path}").stdout for pod in pods] == ["x"] * len(pods)


def test_k5_a_binding_may_leave_the_only_container_unnamed_on_kubernetes(tenant: Tenant, standing: Standing) -> None:
    async def look(connector: Any) -> Any:
        async with connected(connector):
            return await outcome(places(connector, None))

    result = asyncio.run(look(stock_kubernetes(tenant)))
    shown(isinstance(result, TypeError), result)
    assert sorted(asyncio.run(look(our_kubernetes(tenant, selector=f"app={PAIR}")))) == standing.pair


def test_k6_statefulsets_on_kubernetes(tmp_path: Path, tenant: Tenant) -> None:
    names = unique("engine-faults"), unique("engine-faults")
    files = [tmp_path / f"{name}.yaml" for name in names]
    for name, file in zip(names, files, strict=True):
        file.write_text(yaml.safe_dump(pods_of(name, kind="StatefulSet", replicas=1)))

    async def both() -> list[Any]:
        stock = stock_kubernetes(tenant, files[0])
        own = used(at(lambda: our_kubernetes(tenant, files=[str(files[1])], timeout=60)), name_of)
        result = await asyncio.gather(outcome(stock.deploy(False)), own)
        await stock.undeploy(True)
        return result

    try:
        result, place = asyncio.run(both())
    finally:
        tenant.ended("kubectl", "delete", f"statefulset/{names[0]}", "--wait=false")
    shown(isinstance(result.__cause__, AttributeError), result)
    assert place == f"{names[1]}-0:worker"


def test_k7_unrelated_pods_are_not_used_on_kubernetes(tmp_path: Path, tenant: Tenant, standing: Standing) -> None:
    own = unique("engine-faults")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(pods_of(own, replicas=1)))

    async def look(connector: Any) -> Any:
        async with connected(connector):
            return await places(connector)

    result = asyncio.run(look(stock_kubernetes(tenant, tmp_path / "own.yaml")))
    shown({*standing.pair, standing.lone} <= set(result), result)
    place = asyncio.run(
        used(at(lambda: our_kubernetes(tenant, files=[str(tmp_path / "own.yaml")], timeout=60)), name_of)
    )
    assert place.startswith(own)


def test_k8_keys_of_helm_can_be_set_on_kubernetes(tmp_path: Path, tenant: Tenant) -> None:
    assert "--server-side" in tenant.call("helm", "install", "--help")
    chart = tiny_chart(tmp_path)
    helm = "{type: %s, workdir: /work, config: {chart: '%s'%s}}, here: {type"
    refused = [
        not validates(tmp_path / f"{n}", f"pods: {helm % (kind, chart, keys)}", ours=False)
        for n, (kind, keys) in enumerate((("helm3", ""), ("helm4", ", serverSide: true")))
    ]
    shown(all(refused), refused)
    assert validates(tmp_path / "ours", f"pods: {helm % ('medweave.helm', chart, ', timeout: 300')}", ours=True)


def test_k9_charts_of_repositories_keep_their_name_on_kubernetes(tmp_path: Path, tenant: Tenant) -> None:
    with chart_repository(tenant, tiny_chart(tmp_path), tmp_path / "repository") as url:

        async def both() -> list[Any]:
            stock = stock_helm(tenant, "tiny", unique("engine-faults"), repo=url)
            own = used(at(lambda: our_helm(tenant, chart="tiny", repo=url)), name_of)
            result = await asyncio.gather(outcome(stock.deploy(False)), own)
            await stock.undeploy(True)
            return result

        result, place = asyncio.run(both())
    shown('"/site/tiny" not found' in str(result), result)
    assert place.startswith("pods-")


def test_k10_a_missing_image_is_reported_within_seconds_on_kubernetes(tmp_path: Path, tenant: Tenant) -> None:
    chart, name = tiny_chart(tmp_path, image="localhost/nowhere:9"), unique("engine-faults")

    async def both() -> tuple[Any, float, bool]:
        stock = stock_helm(tenant, chart, name, timeout="1000m")
        before = time.monotonic()
        deploying = asyncio.ensure_future(stock.deploy(False))
        result = await outcome(used(at(lambda: our_helm(tenant, chart=str(chart))), name_of))
        known_s = time.monotonic() - before
        await asyncio.wait({deploying}, timeout=3)
        silent = not deploying.done()
        end_helm(name)
        await outcome(deploying)
        await stock.undeploy(True)
        return result, known_s, silent

    try:
        result, known_s, silent = asyncio.run(both())
    finally:
        tenant.ended("helm", "uninstall", name, "--ignore-not-found")
    shown(silent)
    assert isinstance(result, DeploymentRefused), result
    assert "ErrImageNeverPull" in str(result)
    assert known_s < 15


def test_k11_a_time_limit_holds_and_a_cut_is_no_end_on_kubernetes(
    tmp_path: Path, tenant: Tenant, standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(begin_record(tmp_path, monkeypatch), monkeypatch, JOB)
    site = Site(connectors=lambda: [], folder=f"/tmp/{unique('engine-faults')}", read=lambda path: "")

    async def ask(connector: Any) -> tuple[Any, float, Any, Any]:
        async with connected(connector):
            place = (await places(connector))[standing.lone]
            before = time.monotonic()
            late = await outcome(run_job(site, connector, place, "sleep 5", timeout=1))
            took_s = time.monotonic() - before
            going = asyncio.ensure_future(outcome(run_job(site, connector, place, "sleep 60")))
            await asyncio.sleep(2)
            cut(*tenant.server)
            lost = await asyncio.wait_for(going, 40)
        async with connected(connector):
            return late, took_s, lost, await outcome(half(connector, place))

    async def half(connector: Any, place: Any) -> int:
        """Copy two million bytes and cut the connection after half; return the number received."""
        words, num_bytes = ["sh", "-c", "head -c 1000000 /dev/zero; sleep 5; head -c 1000000 /dev/zero"], 0
        async with await connector.get_stream_reader(words, place) as reader:
            while data := await reader.read(100_000):
                num_bytes += len(data)
                if num_bytes == 1_000_000:
                    cut(*tenant.server)
        return num_bytes

    late, took_s, lost, num_bytes = asyncio.run(ask(stock_kubernetes(tenant)))
    shown(late == ("", 0) and took_s > 5, (late, took_s))
    shown(isinstance(lost, TypeError), lost)
    shown(num_bytes == 1_000_000, num_bytes)
    late, took_s, lost, num_bytes = asyncio.run(ask(our_kubernetes(tenant, selector=f"app={LONE}")))
    assert isinstance(late, TimeLimitExceeded), late
    assert took_s < 5
    assert isinstance(lost, JobEndedBySite), lost
    assert isinstance(num_bytes, Exception), num_bytes


def test_k12_the_buffer_of_streams_is_the_documented_one_on_kubernetes(
    tmp_path: Path, tenant: Tenant, standing: Standing
) -> None:
    from streamflow.deployment.connector.kubernetes import KubernetesConnector
    from streamflow.deployment.future import FutureConnector

    async def ask() -> int:
        access = {"namespace": tenant.namespace, "kubeconfig": str(tenant.kubeconfig)}
        lazy = FutureConnector("pods", "/site", KubernetesConnector, True, files=[], **access)
        await lazy.get_available_locations("worker")
        in_use: int = lazy._connector.transferBufferSize
        await lazy.undeploy(True)
        return in_use

    in_use = asyncio.run(ask())
    shown(in_use == 2**16 != stock_kubernetes(tenant).transferBufferSize, in_use)
    # Ours in a whole run, because the engine chooses the connector's defaults there.
    documented = json.loads(MedweaveKubernetesConnector.get_schema())["properties"]["transferBufferSize"]["default"]
    assert used_in_a_run(tmp_path, tenant, f"app={PAIR}") == ["MedweaveKubernetesConnector", documented, False]


def test_k13_helm_of_another_major_version_on_kubernetes(tenant: Tenant) -> None:
    from streamflow.deployment.connector.kubernetes import Helm3Connector

    version = tenant.call("helm", "version", "--template", "{{.Version}}")
    result = asyncio.run(outcome(Helm3Connector("pods", "/site", chart="x")._check_version()))
    shown(f"Helm {version} is not compatible with Helm3Connector" in str(result), result)
    assert (commands.parse_version(version) or (0, 0)) >= commands.OLDEST
    assert asyncio.run(our_helm(tenant, chart="x")._check_helm()) is None
