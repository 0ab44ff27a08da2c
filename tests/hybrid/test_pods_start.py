"""Pods that do not start: an error within 10 s if they never can, otherwise a notice within 10 s and a wait."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.engine import Run
from support.helm_release import Tenant
from support.pod_runs import begin, pods_of, reported_after_s, write
from support.testbed import priority_class, sites, unique

NAME = "start-test"
GOOD = "hostname > result.txt"
REPORTED_S = 10.0  # from the start of the run to the error, or to the reason of the wait
PENDING_S = 12  # longer than that: the reason is reported first


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    tenant.ended("kubectl", "delete", f"deployment/{NAME}", f"pvc/{NAME}", "--ignore-not-found", "--wait=false")


def prepare(
    folder: Path,
    *more: dict[str, Any],
    spec: dict[str, Any] | None = None,
    pending_s: int = PENDING_S,
    **container: Any,
) -> None:
    """Write a run over one pod, whose spec gets the keys of `spec`; `more` are further objects."""
    document = pods_of(NAME, replicas=1, **container)
    document["spec"]["template"]["spec"] |= spec or {}
    (folder / "pods.yaml").write_text(yaml.safe_dump_all([*more, document]))
    config = {"files": ["pods.yaml"], "timeout": 60, "pendingTimeout": pending_s}
    write(folder, {"first": GOOD}, kind="medweave.kubernetes", config=config)


def remaining_objects(tenant: Tenant) -> list[str]:
    objects = tenant.get("deployments,persistentvolumeclaims", "")
    return [document["metadata"]["name"] for document in objects if document["metadata"]["name"] == NAME]


def assert_never(going: Run, tenant: Tenant, words: str) -> None:
    """Assert that the run ends in time with the cluster's error, and its objects are gone."""
    reported_s = reported_after_s(going, "ERROR")
    ended = going.wait()
    assert ended.exit_code == 1
    assert "deployments.pods.config.files: " in ended.stderr
    assert words in ended.stderr
    assert not remaining_objects(tenant)
    assert reported_s < REPORTED_S, f"reported after {reported_s:.1f} s"
    print(f"reported after {reported_s:.1f} s")


def assert_waited_for(going: Run, tenant: Tenant, words: str) -> None:
    """Check that the reason is reported in time, and becomes an error when the waiting time is over."""
    reported_s = reported_after_s(going, words)
    assert "ERROR" not in going.stderr, "it may still start"
    ended = going.wait()
    assert ended.exit_code == 1
    assert f"pendingTimeout: its pods could not start within {PENDING_S} s" in ended.stderr
    assert words in ended.stderr.partition("ERROR")[2]
    assert any(words in event["data"]["text"] for event in ended.of_type("notice"))
    assert not remaining_objects(tenant)
    assert reported_s < REPORTED_S, f"reported after {reported_s:.1f} s"
    print(f"reported after {reported_s:.1f} s")


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"image": "localhost/nowhere:9"}, "ErrImageNeverPull"),
        ({"image": "localhost/No Such Name"}, "InvalidImageName"),
        ({"securityContext": {"runAsUser": 0}}, "violates PodSecurity"),
    ],
    ids=["never-pull", "name", "security"],
)
def test_pods_that_can_never_start(tmp_path: Path, tenant: Tenant, container: dict[str, Any], words: str) -> None:
    # Faults K1 and K10 of the engine: silence for hours, or for ever.
    prepare(tmp_path, **container)
    assert_never(begin(tmp_path, tenant), tenant, words)


def test_a_quota_that_is_exceeded(tmp_path: Path, tenant: Tenant) -> None:
    name = unique("quota")
    # Of the pods of this priority only: others work in the namespace too.
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [name]}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": tenant.namespace},
        "spec": {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}},
    }
    prepare(tmp_path, spec={"priorityClassName": name})
    with sites().made(priority_class(name), quota):
        assert_never(begin(tmp_path, tenant), tenant, f"is forbidden: exceeded quota: {name}, requested: pods=1")


def test_an_external_release_without_pods(tmp_path: Path, tenant: Tenant) -> None:
    config = {"chart": ".", "releaseName": "missing"}
    write(tmp_path, {"first": GOOD}, kind="medweave.helm", config=config, external=True)
    reported_s = reported_after_s(begin(tmp_path, tenant), "ERROR")
    stderr = (tmp_path / "stderr.txt").read_text()
    assert "deployments.pods.config.releaseName: the external release 'missing' has no pods." in stderr
    assert f"no pods with app.kubernetes.io/instance=missing in namespace '{tenant.namespace}'" in stderr
    assert reported_s < REPORTED_S, f"reported after {reported_s:.1f} s"


def test_context_missing_in_the_kubeconfig(tmp_path: Path, tenant: Tenant) -> None:
    config = {"selector": "app=x", "kubeContext": "tenant-x"}
    write(tmp_path, {"first": GOOD}, kind="medweave.kubernetes", config=config)
    reported_s = reported_after_s(begin(tmp_path, tenant), "ERROR")
    stderr = (tmp_path / "stderr.txt").read_text()
    assert "deployments.pods.config.kubeContext: the kubeconfig has no context 'tenant-x'." in stderr
    assert f"expected: one of its contexts: {tenant.namespace}" in stderr
    assert reported_s < REPORTED_S, f"reported after {reported_s:.1f} s"


def test_a_registry_that_does_not_answer(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, image="localhost:1/nowhere:9", imagePullPolicy="Always")
    assert_waited_for(begin(tmp_path, tenant), tenant, "connection refused")


def test_claim_without_a_provisioner(tmp_path: Path, tenant: Tenant) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": NAME},
        "spec": {
            "storageClassName": "missing",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    volume = {"name": "work", "persistentVolumeClaim": {"claimName": NAME}}
    prepare(tmp_path, claim, spec={"volumes": [volume]})
    assert_waited_for(begin(tmp_path, tenant), tenant, 'storageclass.storage.k8s.io "missing" not found')


def test_a_container_that_crashes(tmp_path: Path, tenant: Tenant) -> None:
    command = ["sh", "-c", "echo no weights in /models >&2; exit 3"]
    prepare(tmp_path, command=command, terminationMessagePolicy="FallbackToLogsOnError")
    assert_waited_for(begin(tmp_path, tenant), tenant, "ends as soon as it starts, with Error, exit code 3")
    assert "no weights in /models" in (tmp_path / "stderr.txt").read_text().partition("ERROR")[0]


TOO_MUCH = {"requests": {"cpu": "500"}, "limits": {"cpu": "500"}}


def test_a_pod_that_fits_no_node(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, resources=TOO_MUCH)
    assert_waited_for(begin(tmp_path, tenant), tenant, "Insufficient cpu")


def test_joining_node_restarts_the_wait(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, resources=TOO_MUCH)
    going = begin(tmp_path, tenant)
    going.wait_for_line("Insufficient cpu")
    (pod,) = tenant.get("pods", f"app={NAME}")
    started = time.monotonic()
    time.sleep(PENDING_S / 2)
    scale_up(pod["metadata"])
    scaled_up = time.monotonic()
    ended = going.wait()
    waited_s, anew_s = time.monotonic() - started, time.monotonic() - scaled_up
    assert f"could not start within {PENDING_S} s after the last scale-up." in ended.stderr
    assert anew_s >= PENDING_S
    print(f"{anew_s:.1f} s after the scale-up, {waited_s:.1f} s in all")
    assert not remaining_objects(tenant)


def scale_up(pod: dict[str, Any]) -> None:
    """Create cluster-autoscaler's event about a new node for a pod."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"kind": "Pod", "apiVersion": "v1", **{key: pod[key] for key in ("name", "namespace", "uid")}}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": unique("scale-up"), "namespace": pod["namespace"]},
        "involvedObject": about,
        "reason": "TriggeredScaleUp",
        "message": "pod triggered scale-up: [{cpu-pool 1->2 (max: 4)}]",
        "type": "Normal",
        "source": {"component": "cluster-autoscaler"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    stderr = sites().admin("create", "-f", "-", text=json.dumps(event))
    assert stderr.returncode == 0, stderr.stderr


def test_a_deployment_that_is_taken_away_while_its_pods_are_waited_for(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, spec={"nodeSelector": {"example.org/kind": "none"}}, pending_s=120)
    going = begin(tmp_path, tenant)
    going.wait_for_line("Unschedulable")
    tenant.call("kubectl", "delete", f"deployment/{NAME}", "--wait=false")
    taken = time.monotonic()
    ended = going.wait()
    reported_s = time.monotonic() - taken
    assert (
        f"deployments.pods.config.files: Deployment {NAME} was deleted while medweave waited for its pods"
        in ended.stderr
    )
    assert reported_s < REPORTED_S, f"reported after {reported_s:.1f} s"
    print(f"reported after {reported_s:.1f} s")
