"""What became of a Job: its own conditions, and its pods. Pure.

A success is the Job's condition Complete **and** exit code 0 of the container; everything else is no success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.sites.pods.startup.pod import Pod
from medweave_connectors.sites.pods.startup.states import PodState, describe, end_kind, judge
from medweave_core.untrusted_text import plain_line

_TOO_OFTEN = "BackoffLimitExceeded"
_LATE = "DeadlineExceeded"


class JobState(StrEnum):
    """Where a Job stands."""

    WAITING = "waiting"  # no container of it has run yet, or the next pod is not there yet
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the cluster says of a Job.

    Attributes:
        exit_code: of the command; None where nobody knows it.
        kind: of a failure.
        word: what the cluster says of it.
        pod: the newest of its pods; None where there is none.
        taken_away: pods that were taken away so far, each replaced by another one.
    """

    state: JobState
    exit_code: int | None = None
    kind: FailureKind = FailureKind.UNKNOWN
    word: str = ""
    pod: Pod | None = None
    taken_away: int = 0

    @property
    def ended(self) -> bool:
        """True where nothing of it will run any more."""
        return self.state in (JobState.COMPLETED, JobState.FAILED)


def judge_job(job: Mapping[str, Any] | None, pods: Sequence[Pod], container: str, *, last: Pod | None = None) -> Told:
    """The state of a Job.

    Args:
        job: as the API server has it; None where it has none of that name any more.
        pods: of the Job, oldest first.
        last: the newest pod that an earlier look has seen; one that is gone since says by it what was done to it.
    """
    pod = pods[-1] if pods else None
    if job is None:
        return Told(state=JobState.FAILED, kind=FailureKind.CANCELLED, word="somebody has deleted it", pod=pod or last)
    status = job.get("status") or {}
    conditions = {
        each["type"]: (each.get("reason", ""), plain_line(each.get("message") or ""))
        for each in status.get("conditions") or []
        if each.get("status") == "True"
    }
    taken_away = int(status.get("failed") or 0)
    if "Complete" in conditions:
        return _completed(pod, container, taken_away)
    # A kubelet may call a pod failed before its container has ended: the Job sees no exit code then, and makes another pod.
    late = next((each for each in pods if each.reason == _LATE), None)
    if late is not None:
        return _past_its_limit(late, container, over="Failed" in conditions)
    if "Failed" in conditions:
        return _failed(conditions["Failed"], pod or last, container, is_gone=pod is None)
    if pod is not None and judge(pod)[0] is not PodState.GONE and _runs(pod, container):
        return Told(state=JobState.RUNNING, pod=pod, taken_away=taken_away)
    return Told(state=JobState.WAITING, pod=pod, taken_away=taken_away)


def _completed(pod: Pod | None, container: str, taken_away: int) -> Told:
    found = pod.container(container) if pod is not None else None
    code = found.ended_code if found is not None else None
    if code == 0:
        return Told(state=JobState.COMPLETED, exit_code=0, pod=pod, taken_away=taken_away)
    seen = "its pod is gone" if pod is None else f"container {container} of pod {pod.name}: exit code {code}"
    return Told(state=JobState.FAILED, word=f"Complete, and {seen}", pod=pod)


def _past_its_limit(pod: Pod, container: str, *, over: bool) -> Told:
    """Of a pod that is ended at its time limit: that is the end, whatever the Job makes of it."""
    found = pod.container(container)
    code = found.ended_code if found is not None else None
    if code is None and not over:
        return Told(state=JobState.RUNNING, pod=pod)  # its command gets its time to end
    return Told(state=JobState.FAILED, exit_code=code, kind=FailureKind.TIMEOUT, word=describe(pod), pod=pod)


def _failed(condition: tuple[str, str], pod: Pod | None, container: str, *, is_gone: bool) -> Told:
    reason, message = condition
    said = f"{reason}: {message}" if message else reason
    if pod is None:
        return Told(state=JobState.FAILED, word=said)
    found = pod.container(container)
    kind, code = end_kind(pod, container), found.ended_code if found is not None else None
    if is_gone and code is None:
        # It ran when it was seen last, and somebody has deleted it since; only pods that are taken away are made again.
        kind = FailureKind.PREEMPTED if reason == _TOO_OFTEN else FailureKind.CANCELLED
        return Told(state=JobState.FAILED, kind=kind, word=f"pod {pod.name} is gone ({said})", pod=pod)
    word = "" if kind is FailureKind.STEP_FAILED else f"{describe(pod)} ({said})"
    return Told(state=JobState.FAILED, exit_code=code, kind=kind, word=word, pod=pod)


def _runs(pod: Pod, container: str) -> bool:
    found = pod.container(container)
    return pod.phase == "Running" and found is not None and not found.waiting
