"""A node that is lost while a step runs in its pod: the cluster misses it, and the step fails with that reason, in time.

A kubelet that is killed breaks all connections to its pods; one that is stopped leaves them open and says nothing, as a node
does that has lost its power.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm_release import Tenant, until
from support.pod_runs import PROGRESS, begin, failure, pods_of, pods_on_claim, write
from support.testbed import sites

NAME = "lost-node"
MISSED_S = 90.0  # node-monitor-grace-period is 50 s, its controller looks every 5 s
REPORTED_S = {"exec": 60.0, "job": 240.0}  # the pod of a Job has 2 min to be reachable again


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    tenant.ended("kubectl", "delete", f"deployment/{NAME}", "--ignore-not-found", "--wait=false")
    tenant.ended("kubectl", "delete", "jobs", "--selector=medweave.dev/deployment=pods", "--wait=false")


def missed() -> str:
    """Return the cluster's message about its unreachable node; empty while the node is reachable."""
    (node,) = json.loads(sites().admin("get", "nodes", "-o", "json").stdout)["items"]
    (ready,) = [condition for condition in node["status"]["conditions"] if condition["type"] == "Ready"]
    return "" if ready["status"] == "True" else f"{node['metadata']['name']}: {ready['reason']}: {ready['message']}"


def remaining_objects(tenant: Tenant) -> list[str]:
    """Return the existing objects of a run."""
    objects = tenant.get("deployments,pods", f"app={NAME}") + tenant.get("jobs,pods", "medweave.dev/submission")
    return [f"{document['kind']} {document['metadata']['name']}" for document in objects]


def prepare(folder: Path, mode: str) -> None:
    pods = pods_on_claim(NAME, replicas=1) if mode == "job" else pods_of(NAME, replicas=1)
    (folder / "pods.yaml").write_text(yaml.safe_dump(pods))
    reactions: dict[str, Any] = {"NodeFail": {"do": "stop"}} if mode == "job" else {}
    config = {"files": ["pods.yaml"], "mode": mode, "timeout": 60, "reactions": reactions}
    write(folder, {"works": PROGRESS + "exec sleep 900"}, kind="medweave.kubernetes", config=config)


@pytest.mark.parametrize(("mode", "signal"), [("exec", "KILL"), ("exec", "STOP"), ("job", "STOP")])
def test_step_on_a_lost_node_is_reported_as_node_failure(
    tmp_path: Path, tenant: Tenant, mode: str, signal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, mode)
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 120)
    with sites().without("kubelet", signal):
        stopped = time.monotonic()
        message = until(missed, limit_s=MISSED_S, what="the cluster misses its node")
        known = time.monotonic()
        ended = going.wait(REPORTED_S[mode] + 120)
        ended_at = time.monotonic()
        assert missed() == message
    with capsys.disabled():
        print(
            f"{mode}, {signal} to the kubelet: missed after {known - stopped:.0f} s ({message}), "
            f"ended {ended_at - known:.0f} s later"
        )
    assert ended.exit_code == 1
    site = failure(ended)["site"]
    (pod,) = site["pods"]
    assert site["failure"] == "NodeFail", ended.stderr
    assert f"node {pod['node']} is lost, and with it the processes of pod {pod['pod']}." in ended.stderr
    assert "inform the operators of the cluster if it happens again" in ended.stderr
    assert ended_at - known < REPORTED_S[mode]
    until(lambda: not remaining_objects(tenant), limit_s=90, what="the end of all that the run has made")
