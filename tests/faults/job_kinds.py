"""Faults of steps that have a pod of their own (`mode: job`): what ends the pod, or its Job."""

from __future__ import annotations

import time

from faults.case import CannotPlay, Case, Kind
from faults.pod_kinds import EVICTION, WAIT
from faults.pod_site import Story
from faults.stage import Stage, each
from medweave_connectors.jobs.retries.policy import FailureKind
from support.fake_cluster import NEVER_AGAIN
from support.pod_runs import write

LIMIT_S = 8
MEMORY_MIB = 96
GREEDY = "sleep 1; python3 -c 'x = bytearray(400 << 20)' || exit $?"


def pod_deleted(stage: Stage, case: Case) -> None:
    """Somebody deletes the pod of a Job."""
    pod = _started(stage, case, WAIT)
    told = stage.pods.admin("delete", "pod", pod, "--wait=false")
    _note(case, f"kubectl delete pod {pod}", told)
    case.end()


def job_deleted(stage: Stage, case: Case) -> None:
    """Somebody deletes the Job."""
    _started(stage, case, WAIT)
    (job,) = stage.pods.jobs(case)
    told = stage.pods.admin("delete", "job", job, "--wait=false")
    _note(case, f"kubectl delete job {job}", told)
    case.end()


def out_of_memory(stage: Stage, case: Case) -> None:
    """The step uses four times the memory that it asked for."""
    _started(stage, case, GREEDY, by_itself=True)
    case.inject(f"400 MiB used of {MEMORY_MIB} MiB")
    case.end()
    case.known_at = stage.pods.story(case.uid).changed_at


def time_limit(stage: Stage, case: Case) -> None:
    """The step runs past its time limit."""
    _started(stage, case, WAIT, by_itself=True, limit_s=LIMIT_S)
    case.inject(f"a step of 900 s, activeDeadlineSeconds {LIMIT_S}")
    case.end()
    case.known_at = stage.pods.story(case.uid).changed_at


def evicted(stage: Stage, case: Case) -> None:
    """The Eviction API takes the pod away; Kubernetes makes another one, which does the work."""
    pod = _started(stage, case, f'[ "$(wc -l < {case.there})" -gt 1 ] || {WAIT}')
    case.refuted = not stage.pods.evict(pod)
    case.inject(f"Eviction API on {pod}")
    case.end(240)


def was_deleted(case: Case, told: Story) -> bool:
    """The API server has told that the pod was to go, and nothing else before."""
    return told.deleted and not told.evicted and not told.disruption


def was_killed(case: Case, told: Story) -> bool:
    """The kubelet says so of the container."""
    return told.reason == "OOMKilled"


def was_late(case: Case, told: Story) -> bool:
    """The kubelet says so of the pod."""
    return told.reason == "DeadlineExceeded"


def was_evicted(case: Case, told: Story) -> bool:
    """The API server says so."""
    return told.disruption == EVICTION


def _started(stage: Stage, case: Case, body: str, *, by_itself: bool = False, limit_s: int | None = None) -> str:
    """Starts the driver and waits until the command runs; the name of its pod.

    Args:
        by_itself: the fault does not wait for the campaign.
    """
    asks = {"ResourceRequirement": {"coresMin": 0.02, "ramMin": MEMORY_MIB}}
    limit = {} if limit_s is None else {"ToolTimeLimit": {"timelimit": limit_s}}
    config = {"selector": f"app={stage.pods.store()}", "mode": "job", "timeout": 180, "reactions": NEVER_AGAIN}
    tool = (case.script(body), {"requirements": asks | limit})
    write(case.folder, {case.name: tool}, kind="medweave.kubernetes", config=config)
    case.begin_and_wait()
    pods = stage.pods.pods_of_jobs(case)
    if not pods:
        raise CannotPlay("the API server has told of no pod of its Job")
    case.uid = pods[0].uid
    if not by_itself:
        time.sleep(case.chance.uniform(0, 3))
    return pods[0].name


def _note(case: Case, what: str, told: str) -> None:
    case.inject(what)
    case.evidence.append(f"the API server: {told.strip()}")
    case.refuted = "deleted" not in told


KINDS = (
    Kind(
        name="job-pod-deleted", site="pods", play=each(pod_deleted), proof=was_deleted,
        right=frozenset({FailureKind.CANCELLED}),
    ),
    Kind(name="job-deleted", site="pods", play=each(job_deleted), proof=was_deleted, right=frozenset({FailureKind.CANCELLED})),
    Kind(
        name="job-memory", site="pods", play=each(out_of_memory), proof=was_killed,
        right=frozenset({FailureKind.OUT_OF_MEMORY}),
    ),
    Kind(name="job-time-limit", site="pods", play=each(time_limit), proof=was_late, right=frozenset({FailureKind.TIMEOUT})),
    Kind(name="job-evicted", site="pods", play=each(evicted), proof=was_evicted, fatal=False),
)  # fmt: skip
