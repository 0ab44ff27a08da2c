"""Faults of steps with a separate pod (`mode: job`) that end the pod or its Job."""

from __future__ import annotations

import time

from faults.case import CannotPlay, Case, Kind
from faults.pod_kinds import EVICTION, WAIT
from faults.pod_site import PodHistory
from faults.stage import Stage, for_each_case
from medweave_connectors.jobs.retries.policy import FailureKind
from support.fake_cluster import NEVER_AGAIN
from support.pod_runs import write

LIMIT_S = 8
MEMORY_MIB = 96
GREEDY = "sleep 1; python3 -c 'x = bytearray(400 << 20)' || exit $?"


def pod_deleted(stage: Stage, case: Case) -> None:
    """Delete the pod of a Job."""
    pod = _started(stage, case, WAIT)
    output = stage.pods.admin("delete", "pod", pod, "--wait=false")
    _note(case, f"kubectl delete pod {pod}", output)
    case.end()


def job_deleted(stage: Stage, case: Case) -> None:
    """Delete the Job."""
    _started(stage, case, WAIT)
    (job,) = stage.pods.jobs(case)
    output = stage.pods.admin("delete", "job", job, "--wait=false")
    _note(case, f"kubectl delete job {job}", output)
    case.end()


def out_of_memory(stage: Stage, case: Case) -> None:
    """Run a step that uses four times its requested memory."""
    _started(stage, case, GREEDY, injects_itself=True)
    case.inject(f"400 MiB used of {MEMORY_MIB} MiB")
    case.end()
    case.known_at = stage.pods.history(case.uid).changed_at


def time_limit(stage: Stage, case: Case) -> None:
    """Run a step past its time limit."""
    _started(stage, case, WAIT, injects_itself=True, limit_s=LIMIT_S)
    case.inject(f"a step of 900 s, activeDeadlineSeconds {LIMIT_S}")
    case.end()
    case.known_at = stage.pods.history(case.uid).changed_at


def evicted(stage: Stage, case: Case) -> None:
    """Evict the pod by the Eviction API; Kubernetes creates another one, which completes."""
    pod = _started(stage, case, f'[ "$(wc -l < {case.ledger_at_site})" -gt 1 ] || {WAIT}')
    case.refuted = not stage.pods.evict(pod)
    case.inject(f"Eviction API on {pod}")
    case.end(240)


def was_deleted(case: Case, history: PodHistory) -> bool:
    """Return whether the API server reported the deletion of the pod, and nothing else before."""
    return history.deleted and not history.evicted and not history.disruption


def was_killed(case: Case, history: PodHistory) -> bool:
    """Return whether the kubelet reported OOMKilled for the container."""
    return history.reason == "OOMKilled"


def was_late(case: Case, history: PodHistory) -> bool:
    """Return whether the kubelet reported DeadlineExceeded for the pod."""
    return history.reason == "DeadlineExceeded"


def was_evicted(case: Case, history: PodHistory) -> bool:
    """Return whether the API server reported an eviction."""
    return history.disruption == EVICTION


def _started(stage: Stage, case: Case, body: str, *, injects_itself: bool = False, limit_s: int | None = None) -> str:
    """Start the driver and wait until the command runs; return the name of its pod.

    Args:
        injects_itself: whether the step causes the fault without the campaign.
    """
    requests = {"ResourceRequirement": {"coresMin": 0.02, "ramMin": MEMORY_MIB}}
    limit = {} if limit_s is None else {"ToolTimeLimit": {"timelimit": limit_s}}
    config = {"selector": f"app={stage.pods.store()}", "mode": "job", "timeout": 180, "reactions": NEVER_AGAIN}
    tool = (case.script(body), {"requirements": requests | limit})
    write(case.folder, {case.name: tool}, kind="medweave.kubernetes", config=config)
    case.begin_and_wait()
    pods = stage.pods.pods_of_jobs(case)
    if not pods:
        raise CannotPlay("the API server has reported no pod of its Job")
    case.uid = pods[0].uid
    if not injects_itself:
        time.sleep(case.chance.uniform(0, 3))
    return pods[0].name


def _note(case: Case, what: str, output: str) -> None:
    case.inject(what)
    case.evidence.append(f"the API server: {output.strip()}")
    case.refuted = "deleted" not in output


KINDS = (
    Kind(
        name="job-pod-deleted",
        site="pods",
        play=for_each_case(pod_deleted),
        proof=was_deleted,
        right=frozenset({FailureKind.CANCELLED}),
    ),
    Kind(
        name="job-deleted",
        site="pods",
        play=for_each_case(job_deleted),
        proof=was_deleted,
        right=frozenset({FailureKind.CANCELLED}),
    ),
    Kind(
        name="job-memory",
        site="pods",
        play=for_each_case(out_of_memory),
        proof=was_killed,
        right=frozenset({FailureKind.OUT_OF_MEMORY}),
    ),
    Kind(
        name="job-time-limit",
        site="pods",
        play=for_each_case(time_limit),
        proof=was_late,
        right=frozenset({FailureKind.TIMEOUT}),
    ),
    Kind(name="job-evicted", site="pods", play=for_each_case(evicted), proof=was_evicted, fatal=False),
)
