"""What `helm/compss-cluster` renders for each engine and number of workers, and what `medweave.compss` makes of such pods."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from medweave_connectors.sites.compss import xml
from medweave_connectors.sites.pods.objects.pod import parse_pod
from medweave_connectors.sites.pods.objects.workloads import find_workloads
from support.api_server import pod_of
from support.compss_cluster import CHART
from support.helm_release import Tenant

# A Helm that was built without a version stamp takes an unknown cluster for a very old one.
OFFLINE = ("--kube-version", "1.34.4")
SSH_PORT = 2022
SCALES = (1, 4, 2)


def settings(engine: str, workers: int, *more: str) -> list[str]:
    values = ["image.repository=localhost/x", "image.tag=v1", f"engine={engine}", f"worker.replicas={workers}"]
    return ["--set", ",".join([*values, f"compss.sshPort={SSH_PORT}", *more])]


def rendered(tenant: Tenant, engine: str, workers: int) -> list[dict[str, Any]]:
    text = tenant.call("helm", "template", "ci", *OFFLINE, CHART, *settings(engine, workers))
    return [document for document in yaml.safe_load_all(text) if document]


def is_hook(document: dict[str, Any]) -> bool:
    """Return whether an object is created only by `helm test`, and is no part of the release."""
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (one,) = [document for document in objects if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return one


def compute_nodes(text: str) -> list[str | None]:
    return [node.get("Name") for node in ElementTree.fromstring(text).iter("ComputeNode")]


@pytest.mark.parametrize("workers", SCALES)
@pytest.mark.parametrize("engine", ["ddp", "compss"])
def test_the_pods_know_each_other_by_the_names_that_the_connector_reads(
    tenant: Tenant, engine: str, workers: int
) -> None:
    objects = rendered(tenant, engine, workers)
    masters = {"ci-master": 1} if engine == "compss" else {}
    in_release = find_workloads(document for document in objects if not is_hook(document))
    assert {workload.name: workload.replicas for workload in in_release} == {"ci-worker": workers, **masters}
    assert len({workload.selector for workload in in_release}) == len(in_release), "no part's pods are another's"
    worker = named(objects, "StatefulSet", "ci-worker")
    assert named(objects, "Service", worker["spec"]["serviceName"])["spec"]["clusterIP"] == "None"
    addresses = [parse_pod(pod_of(worker, number)).address for number in range(workers)]
    peers = named(objects, "ConfigMap", "ci-scripts")["data"]["peers"].split()
    assert peers == addresses == [f"ci-worker-{number}.ci-pods" for number in range(workers)]


@pytest.mark.parametrize("workers", SCALES)
def test_project_and_resources_are_those_of_the_pods(tenant: Tenant, workers: int) -> None:
    worker = named(rendered(tenant, "compss", workers), "StatefulSet", "ci-worker")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    (port,) = [port["containerPort"] for port in container["ports"] if port["name"] == "ssh"]
    names = [parse_pod(pod_of(worker, number)).address for number in range(workers)]
    folders = {"install_dir": "/opt/COMPSs", "working_dir": "/work/j", "app_dir": "/a", "python_path": "/p"}
    resources = xml.build_resources(names, ssh_port=port)
    assert compute_nodes(xml.build_project(names, **folders)) == compute_nodes(resources) == names
    ports = {element.text for element in ElementTree.fromstring(resources).iter("SpawnerPort")}
    assert ports == {str(SSH_PORT)}


@pytest.mark.parametrize(
    ("engine", "first", "service"),
    [
        ("ddp", "Release ci: 4 worker pod(s) for engine ddp. Research use only.", "`worker` for a step that starts once"),
        ("compss", "Release ci: 4 worker pod(s) for engine compss, and a master. Research use only.", "`master` for a step"),
    ],
)  # fmt: skip
def test_notes_print_the_next_command(tenant: Tenant, engine: str, first: str, service: str) -> None:
    output = tenant.call(
        "helm", "install", "ci", CHART, "--dry-run=server", *settings(engine, 4, "sharedVolume.create=true")
    )
    notes = output.partition("\nNOTES:\n")[2]
    assert notes.startswith(first)
    assert f"  helm test ci -n {tenant.namespace} --logs\n" in notes
    assert f"  kubectl describe pod -n {tenant.namespace} -l app.kubernetes.io/instance=ci\n" in notes
    assert f"its service is the container's name, {service}" in notes
    assert "Uninstalling the release deletes the claim ci-shared and its data." in notes
    assert "{{" not in notes
    claims = tenant.call("helm", "install", "ci", CHART, "--dry-run=server", *settings(engine, 4))
    assert "Uninstalling the release deletes" not in claims


@pytest.mark.parametrize("engine", ["ddp", "compss"])
def test_helm_test_is_one_pod_with_the_masters_key_that_is_no_peer(tenant: Tenant, engine: str) -> None:
    objects = rendered(tenant, engine, 2)
    (pod,) = filter(is_hook, objects)
    assert (pod["kind"], pod["metadata"]["name"]) == ("Pod", "ci-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["/run/medweave-scripts/test-cluster.sh"]
    assert {"name": "POD_ENGINE", "value": engine} in container["env"]
    keys = [volume["secret"]["items"] for volume in pod["spec"]["volumes"] if volume["name"] == "keys"]
    assert [item["key"] for items in keys for item in items] == (
        ["client-key", "known-hosts"] if engine == "compss" else []
    )
    peers = [
        document["spec"]["template"]["metadata"]["labels"] for document in objects if document["kind"] == "StatefulSet"
    ]
    assert all("medweave/peer" in labels for labels in peers)
    assert "medweave/peer" not in pod["metadata"]["labels"], "no Service and no budget counts it"
