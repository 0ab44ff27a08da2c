"""The status of a Job, judged by its conditions and its pods. Pure.

A success is the Job's condition Complete **and** exit code 0 of the container; everything else is no success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, describe, failure_kind, judge
from medweave_core.untrusted_text import plain_line

_TOO_OFTEN = "BackoffLimitExceeded"
_LATE = "DeadlineExceeded"


class KubernetesJobState(StrEnum):
    """State of a Job."""

    WAITING = "waiting"  # no container has run yet, or the next pod does not exist yet
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Status of a Job.

    Attributes:
        exit_code: of the command; None if unknown.
        kind: of a failure.
        word: message of the cluster.
        pod: the newest of its pods; None without pods.
        num_disrupted: disrupted pods so far, all of them replaced.
    """

    state: KubernetesJobState
    exit_code: int | None = None
    kind: FailureKind = FailureKind.UNKNOWN
    word: str = ""
    pod: Pod | None = None
    num_disrupted: int = 0

    @property
    def ended(self) -> bool:
        """Return whether the Job has ended."""
        return self.state in (KubernetesJobState.COMPLETED, KubernetesJobState.FAILED)


def judge_job(
    job: Mapping[str, Any] | None, pods: Sequence[Pod], container: str, *, last: Pod | None = None
) -> JobStatus:
    """Return the status of a Job.

    Args:
        job: JSON of the API server; None if no Job has the name any more.
        pods: of the Job, oldest first.
        last: the newest pod of an earlier snapshot, to judge a pod that is gone since.
    """
    pod = pods[-1] if pods else None
    if job is None:
        return JobStatus(
            state=KubernetesJobState.FAILED, kind=FailureKind.CANCELLED, word="it was deleted", pod=pod or last
        )
    status = job.get("status") or {}
    conditions = {
        condition["type"]: (condition.get("reason", ""), plain_line(condition.get("message") or ""))
        for condition in status.get("conditions") or []
        if condition.get("status") == "True"
    }
    num_disrupted = int(status.get("failed") or 0)
    if "Complete" in conditions:
        return _completed(pod, container, num_disrupted)
    # A kubelet may call a pod failed before its container has ended: the Job sees no exit code then, and makes another pod.
    late = next((pod for pod in pods if pod.reason == _LATE), None)
    if late is not None:
        return _past_its_limit(late, container, over="Failed" in conditions)
    if "Failed" in conditions:
        return _failed(conditions["Failed"], pod or last, container, is_gone=pod is None)
    if pod is not None and judge(pod)[0] is not PodState.GONE and _runs(pod, container):
        return JobStatus(state=KubernetesJobState.RUNNING, pod=pod, num_disrupted=num_disrupted)
    return JobStatus(state=KubernetesJobState.WAITING, pod=pod, num_disrupted=num_disrupted)


def _completed(pod: Pod | None, container: str, num_disrupted: int) -> JobStatus:
    spec = pod.container(container) if pod is not None else None
    code = spec.ended_code if spec is not None else None
    if code == 0:
        return JobStatus(state=KubernetesJobState.COMPLETED, exit_code=0, pod=pod, num_disrupted=num_disrupted)
    seen = "its pod is gone" if pod is None else f"container {container} of pod {pod.name}: exit code {code}"
    return JobStatus(state=KubernetesJobState.FAILED, word=f"Complete, and {seen}", pod=pod)


def _past_its_limit(pod: Pod, container: str, *, over: bool) -> JobStatus:
    """Return the status of a pod that reached its time limit; that ends the step, even if the Job creates another pod."""
    spec = pod.container(container)
    code = spec.ended_code if spec is not None else None
    if code is None and not over:
        return JobStatus(state=KubernetesJobState.RUNNING, pod=pod)  # within its grace period
    return JobStatus(
        state=KubernetesJobState.FAILED, exit_code=code, kind=FailureKind.TIMEOUT, word=describe(pod), pod=pod
    )


def _failed(condition: tuple[str, str], pod: Pod | None, container: str, *, is_gone: bool) -> JobStatus:
    reason, message = condition
    condition_text = f"{reason}: {message}" if message else reason
    if pod is None:
        return JobStatus(state=KubernetesJobState.FAILED, word=condition_text)
    spec = pod.container(container)
    kind, code = failure_kind(pod, container), spec.ended_code if spec is not None else None
    if is_gone and code is None:
        # It was running in the last snapshot and has been deleted since; Kubernetes only replaces disrupted pods.
        kind = FailureKind.PREEMPTED if reason == _TOO_OFTEN else FailureKind.CANCELLED
        return JobStatus(
            state=KubernetesJobState.FAILED, kind=kind, word=f"pod {pod.name} is gone ({condition_text})", pod=pod
        )
    word = "" if kind is FailureKind.STEP_FAILED else f"{describe(pod)} ({condition_text})"
    return JobStatus(state=KubernetesJobState.FAILED, exit_code=code, kind=kind, word=word, pod=pod)


def _runs(pod: Pod, container: str) -> bool:
    spec = pod.container(container)
    return pod.phase == "Running" and spec is not None and not spec.waiting
