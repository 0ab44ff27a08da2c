"""A container that has just started is ready in Kubernetes' eyes, unless a probe says otherwise: when it is believed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from medweave_connectors.sites.pods.objects.pod import Pod, parse_pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, judge
from medweave_connectors.sites.pods.objects.workloads import Workload
from medweave_connectors.sites.pods.startup.readiness import Readiness
from medweave_connectors.sites.pods.startup.settling import SETTLE_AGAIN_S, SETTLE_S, RecentStarts
from support.api_server import pod_document

FIRST, SECOND = "2026-11-23T20:00:00Z", "2026-11-23T20:00:11Z"
CRASH = {"terminated": {"reason": "Error", "exitCode": 3, "message": "no weights in /models"}}


def pod(*, started: str = FIRST, restarts: int = 0, probe: str = "", crashed: bool = False) -> Pod:
    """Return a pod of the API server that is ready, or whose container has crashed."""
    document = pod_document("segment-1")
    if probe:
        document["spec"]["containers"][0][probe] = {"exec": {"command": ["true"]}}
    (status,) = document["status"]["containerStatuses"]
    status |= {"restartCount": restarts, "state": CRASH if crashed else {"running": {"startedAt": started}}}
    if restarts:
        status["lastState"] = CRASH
    if crashed:
        document["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]
    return parse_pod(document)


def looked(*looks: tuple[float, Pod]) -> tuple[PodState, str]:
    """The pod's state at the last of some looks."""
    doubts = RecentStarts()
    for now_s, pod_of_look in looks:
        doubts = doubts.after(now_s, [pod_of_look])
    return judge(doubts.settled(*looks[-1]))


def test_a_container_that_has_just_started_is_believed_a_little_later() -> None:
    assert looked((5.0, pod())) == (PodState.STARTING, "starting: container worker has just started")
    assert looked((5.0, pod()), (5.0 + SETTLE_S, pod()))[0] is PodState.READY


def test_one_that_has_ended_before_is_waited_for_longer_with_its_reason() -> None:
    again = pod(started=SECOND, restarts=1)
    state, why = looked((5.0, pod()), (20.0, again), (20.0 + SETTLE_S, again))
    assert state is PodState.STUCK
    assert why == "CrashLoopBackOff: container worker ends as soon as it starts, with Error, exit code 3"
    assert looked((20.0, again), (20.0 + SETTLE_AGAIN_S, again))[0] is PodState.READY


@pytest.mark.parametrize("probe", ["readinessProbe", "startupProbe"])
def test_a_probe_is_believed_at_once(probe: str) -> None:
    assert looked((5.0, pod(probe=probe)))[0] is PodState.READY


def test_a_look_without_an_answer_starts_no_time_anew() -> None:
    doubts = RecentStarts().after(5.0, [pod()]).after(6.0, []).after(5.0 + SETTLE_S, [pod()])
    assert judge(doubts.settled(5.0 + SETTLE_S, pod()))[0] is PodState.READY


def test_a_pod_that_is_not_ready_keeps_its_own_reason() -> None:
    assert looked((5.0, pod(crashed=True)))[1] == "ContainersNotReady"


class Crashing:
    """An API server whose pod is ready for a moment, crashes, and runs when it is started again."""

    namespace = "tenant-a"

    def __init__(self) -> None:
        self.looks = 0

    async def pods(self, selector: str) -> list[Pod]:
        self.looks += 1
        if self.looks == 1:
            return [pod()]
        return [pod(crashed=True)] if self.looks == 2 else [pod(started=SECOND, restarts=1, probe="readinessProbe")]

    async def list_events(self) -> list[Any]:
        return []


@pytest.mark.slow
def test_pods_that_are_ready_for_a_moment_are_not_given_to_the_run() -> None:
    # Seen on a real cluster: a container that exits at once was reported as ready, and the run failed at its first command.
    wanted = Workload(kind="Deployment", name="segment", replicas=1, selector="app=w", containers=("worker",))
    cluster: Any = Crashing()
    waits = Readiness("pods", cluster, [wanted], timeout_s=60, pending_timeout_s=60, key_of=lambda image: "files")
    (pod_of_look,) = asyncio.run(waits.wait())
    assert pod_of_look.containers[0].started == SECOND
