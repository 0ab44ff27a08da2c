"""Pods that do not start: what can never start is an error within 10 s, what may still is told within 10 s and waited for."""

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
TOLD_S = 10.0  # from the start of the run to the error, or to the reason of the wait
PENDING_S = 12  # longer than that: the reason is told first


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
    """A run over one pod, whose spec gets the keys of `spec`; `more` are other objects beside its Deployment."""
    document = pods_of(NAME, replicas=1, **container)
    document["spec"]["template"]["spec"] |= spec or {}
    (folder / "pods.yaml").write_text(yaml.safe_dump_all([*more, document]))
    config = {"files": ["pods.yaml"], "timeout": 60, "pendingTimeout": pending_s}
    write(folder, {"first": GOOD}, kind="medweave.kubernetes", config=config)


def left(tenant: Tenant) -> list[str]:
    found = tenant.get("deployments,persistentvolumeclaims", "")
    return [each["metadata"]["name"] for each in found if each["metadata"]["name"] == NAME]


def assert_never(going: Run, tenant: Tenant, words: str) -> None:
    """The run ends with an error in time, in the cluster's words, and its objects are gone."""
    told_s = reported_after_s(going, "ERROR")
    ended = going.wait()
    assert ended.exit_code == 1
    assert "deployments.pods.config.files: " in ended.stderr
    assert words in ended.stderr
    assert not left(tenant)
    assert told_s < TOLD_S, f"told after {told_s:.1f} s"
    print(f"told after {told_s:.1f} s")


def assert_waited_for(going: Run, tenant: Tenant, words: str) -> None:
    """The reason is told in time, and becomes an error when the time of waiting is over."""
    told_s = reported_after_s(going, words)
    assert "ERROR" not in going.stderr, "it may still start"
    ended = going.wait()
    assert ended.exit_code == 1
    assert f"pendingTimeout: its pods could not start within {PENDING_S} s" in ended.stderr
    assert words in ended.stderr.partition("ERROR")[2]
    assert any(words in event["data"]["text"] for event in ended.of_type("notice"))
    assert not left(tenant)
    assert told_s < TOLD_S, f"told after {told_s:.1f} s"
    print(f"told after {told_s:.1f} s")


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
    config = {"chart": ".", "releaseName": "nobodys"}
    write(tmp_path, {"first": GOOD}, kind="medweave.helm", config=config, external=True)
    told_s = reported_after_s(begin(tmp_path, tenant), "ERROR")
    told = (tmp_path / "stderr.txt").read_text()
    assert "deployments.pods.config.releaseName: the external release 'nobodys' has no pods." in told
    assert f"no pods with app.kubernetes.io/instance=nobodys in namespace '{tenant.namespace}'" in told
    assert told_s < TOLD_S, f"told after {told_s:.1f} s"


def test_a_context_that_the_kubeconfig_has_not(tmp_path: Path, tenant: Tenant) -> None:
    config = {"selector": "app=x", "kubeContext": "tenant-x"}
    write(tmp_path, {"first": GOOD}, kind="medweave.kubernetes", config=config)
    told_s = reported_after_s(begin(tmp_path, tenant), "ERROR")
    told = (tmp_path / "stderr.txt").read_text()
    assert "deployments.pods.config.kubeContext: the kubeconfig has no context 'tenant-x'." in told
    assert f"expected: one of its contexts: {tenant.namespace}" in told
    assert told_s < TOLD_S, f"told after {told_s:.1f} s"


def test_a_registry_that_does_not_answer(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, image="localhost:1/nowhere:9", imagePullPolicy="Always")
    assert_waited_for(begin(tmp_path, tenant), tenant, "connection refused")


def test_a_claim_that_nobody_provides(tmp_path: Path, tenant: Tenant) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": NAME},
        "spec": {
            "storageClassName": "nobodys",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    volume = {"name": "work", "persistentVolumeClaim": {"claimName": NAME}}
    prepare(tmp_path, claim, spec={"volumes": [volume]})
    assert_waited_for(begin(tmp_path, tenant), tenant, 'storageclass.storage.k8s.io "nobodys" not found')


def test_a_container_that_crashes(tmp_path: Path, tenant: Tenant) -> None:
    command = ["sh", "-c", "echo no weights in /models >&2; exit 3"]
    prepare(tmp_path, command=command, terminationMessagePolicy="FallbackToLogsOnError")
    assert_waited_for(begin(tmp_path, tenant), tenant, "ends as soon as it starts, with Error, exit code 3")
    assert "no weights in /models" in (tmp_path / "stderr.txt").read_text().partition("ERROR")[0]


TOO_MUCH = {"requests": {"cpu": "500"}, "limits": {"cpu": "500"}}


def test_a_pod_that_fits_no_node(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, resources=TOO_MUCH)
    assert_waited_for(begin(tmp_path, tenant), tenant, "Insufficient cpu")


def test_a_node_that_is_on_its_way_starts_the_wait_anew(tmp_path: Path, tenant: Tenant) -> None:
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
    assert not left(tenant)


def scale_up(pod: dict[str, Any]) -> None:
    """The event of cluster-autoscaler that tells of a node for a pod."""
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
    told = sites().admin("create", "-f", "-", text=json.dumps(event))
    assert told.returncode == 0, told.stderr


def test_a_deployment_that_is_taken_away_while_its_pods_are_waited_for(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, spec={"nodeSelector": {"example.org/kind": "none"}}, pending_s=120)
    going = begin(tmp_path, tenant)
    going.wait_for_line("Unschedulable")
    tenant.call("kubectl", "delete", f"deployment/{NAME}", "--wait=false")
    taken = time.monotonic()
    ended = going.wait()
    told_s = time.monotonic() - taken
    assert (
        f"deployments.pods.config.files: Deployment {NAME} was deleted while medweave waited for its pods"
        in ended.stderr
    )
    assert told_s < TOLD_S, f"told after {told_s:.1f} s"
    print(f"told after {told_s:.1f} s")
