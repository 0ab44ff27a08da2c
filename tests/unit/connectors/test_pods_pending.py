"""Runs with pods that wait for resources: the reason is reported at once, and once, and `pendingTimeout` ends the wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.objects.pod import Pod, parse_pod
from medweave_connectors.sites.pods.objects.workloads import Workload
from medweave_connectors.sites.pods.startup import deadlines, readiness
from medweave_connectors.sites.pods.startup.readiness import Readiness
from support.api_server import ApiServer, pod_document
from support.engine import Run, run, start
from support.small_cluster import DEPLOYMENT, applied, small_cluster, write

GOOD = "echo {} > run_report.json; echo x > result.txt"
NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}
PENDING: dict[str, Any] = {"phase": "Pending", "conditions": [NO_ROOM], "containerStatuses": []}
READY: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
SCHEDULER = "type: medweave.scheduler, config: {}"
RUNS = [{"name": "worker", "restartCount": 0, "state": {"running": {}}}]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with small_cluster(tmp_path) as serving:
        (tmp_path / "segment.yaml").write_text(DEPLOYMENT)
        yield serving


def notices(ended: Run) -> list[tuple[str, str]]:
    return [(event["deployment"], event["data"]["text"]) for event in ended.of_type("notice")]


def event(reason: str, text: str) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "segment-1"}
    facts = {"metadata": {"uid": reason}, "involvedObject": about, "lastTimestamp": "2999-01-01T00:00:00Z"}
    return facts | {"reason": reason, "message": text}


@pytest.mark.slow
def test_a_pod_without_room_is_told_at_once_and_refused_at_pending_timeout(tmp_path: Path, server: ApiServer) -> None:
    applied(server, **PENDING)
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml], pendingTimeout: 2")
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "deployments.pods.config.pendingTimeout: its pods could not start within 2 s." in ended.stderr
    assert "3 Insufficient nvidia.com/gpu" in ended.stderr
    assert ended.stderr.count("waits for up to 2 s") == 1
    why = "segment-1: Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    assert notices(ended) == [("pods", f"0 of 1 pods ready; waits for up to 2 s: {why}")]
    assert not server.objects


@pytest.mark.slow
def test_a_pod_that_gets_its_room_in_time_is_no_failure(tmp_path: Path, server: ApiServer) -> None:
    applied(server, **PENDING)
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml], timeout: 2, pendingTimeout: 60")
    going = start(tmp_path)
    going.wait_for_line("Insufficient nvidia.com/gpu")
    time.sleep(2.5)  # longer than `timeout`, which leaves such a time out
    pod = server.pods["segment-1"]
    crash = {"terminated": {"reason": "Error", "exitCode": 1, "message": "the model is not there yet"}}
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    looping = [{"name": "worker", "restartCount": 1, "state": waits, "lastState": crash}]
    pod["status"] |= {"phase": "Running", "conditions": [], "containerStatuses": looping}
    going.wait_for_line("the model is not there yet")
    pod["status"] |= READY | {"containerStatuses": RUNS}
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert [text.partition(": segment-1: ")[2].partition(":")[0] for _, text in notices(ended)] == [
        "Unschedulable",
        "CrashLoopBackOff",
    ]


@pytest.mark.slow
def test_a_node_that_is_coming_gives_the_time_again(tmp_path: Path, server: ApiServer) -> None:
    applied(server, **PENDING)
    server.events.append(event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached"))
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml], pendingTimeout: 4")
    going = start(tmp_path)
    going.wait_for_line("Insufficient nvidia.com/gpu")
    time.sleep(1)
    appended = time.monotonic()
    server.events.append(event("TriggeredScaleUp", "pod triggered scale-up: [{gpus 0->1 (max: 4)}]"))
    ended = going.wait()
    assert time.monotonic() - appended >= 4
    assert "its pods could not start within 4 s after the last scale-up." in ended.stderr
    assert "TriggeredScaleUp: pod triggered scale-up: [{gpus 0->1 (max: 4)}]" in ended.stderr
    assert "max node group size reached" in ended.stderr


@pytest.mark.slow
def test_pods_of_others_that_wait_are_told_too(tmp_path: Path, server: ApiServer) -> None:
    for pod in server.pods.values():
        pod["status"] |= PENDING
    write(tmp_path, {"first": GOOD}, config="selector: app=w, pendingTimeout: 2")
    file = tmp_path / "streamflow.yml"
    assert SCHEDULER in file.read_text()
    file.write_text(file.read_text().replace(SCHEDULER, "type: medweave.scheduler, config: {retry_delay: 1}"))
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "deployments.pods.config.pendingTimeout: it has had no ready pod for 2 s." in ended.stderr
    why = "w-0, w-1: Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    assert notices(ended) == [("pods", f"no pod is ready; waits for up to 2 s: {why}")]


@pytest.mark.slow
def test_a_workload_that_is_taken_away_is_told_within_seconds(tmp_path: Path, server: ApiServer) -> None:
    applied(server, **PENDING)
    write(tmp_path, {"first": GOOD}, config="files: [segment.yaml]")
    going = start(tmp_path)
    going.wait_for_line("Insufficient nvidia.com/gpu")
    before = time.monotonic()
    server.objects.clear()
    server.remove("segment-1")
    ended = going.wait()
    assert time.monotonic() - before < 10
    assert ended.exit_code == 1
    message = "deployments.pods.config.files: Deployment segment was deleted while medweave waited for its pods."
    assert message in ended.stderr
    assert "seen:     Deployment segment is gone" in ended.stderr
    assert "do:       find out what deleted it, and run again" in ended.stderr


class OneWrongAnswer:
    """An API server that has no pods yet, and that once does not know the workload which it has."""

    namespace = "tenant-a"

    def __init__(self) -> None:
        self.num_requests = 0

    async def pods(self, selector: str) -> list[Pod]:
        return [parse_pod(pod_document("segment-1"))] if self.num_requests > 3 else []

    async def list_events(self) -> list[Any]:
        return []

    async def request(self, method: str, path: str) -> dict[str, Any]:
        assert (method, path) == ("GET", "/apis/apps/v1/namespaces/tenant-a/deployments/segment")
        self.num_requests += 1
        if self.num_requests % 2:
            raise ApiServerError(404, 'deployments.apps "segment" not found')
        return {}


@pytest.mark.slow
def test_one_wrong_answer_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "POLL_S", 0.05)
    monkeypatch.setattr(readiness, "GONE_S", 0.2)
    monkeypatch.setattr(deadlines, "NEVER_S", 0.3)
    wanted = Workload(kind="Deployment", name="segment", replicas=1, selector="app=segment", containers=("worker",))
    cluster: Any = OneWrongAnswer()
    waits = Readiness("pods", cluster, [wanted], timeout_s=60, pending_timeout_s=60, key_of=lambda image: "files")
    (pod,) = asyncio.run(waits.wait())
    assert pod.name == "segment-1"
