"""Faults that end pods, or what runs in them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from faults.case import CannotPlay, Case, Kind
from faults.pod_site import Story
from faults.stage import Stage, each
from medweave_connectors.jobs.retries.policy import FailureKind

WAIT = "sleep 900"
EVICTED, EVICTION = "event Evicted: ", "EvictionByEvictionAPI"
MEMORY, DISK = "96Mi", "10Mi"
FILL = "head -c 31457280 /dev/zero > filler"  # 30 MiB


def deleted(stage: Stage, case: Case) -> None:
    """Somebody deletes the pod."""
    stage.pods.write(case, case.script(WAIT))
    pod = _started(stage, case)
    told = stage.pods.admin("delete", "pod", pod, "--wait=false")
    case.inject(f"kubectl delete pod {pod}")
    case.evidence.append(f"the API server: {told.strip()}")
    case.refuted = "deleted" not in told
    case.end()


def was_deleted(case: Case, told: Story) -> bool:
    """The API server has told that it was to go, or is gone, before it could know of anything else."""
    return told.deleted and not told.evicted


def evicted(stage: Stage, case: Case) -> None:
    """The Eviction API takes the pod away; every second one goes over the limit of its volume, and the kubelet evicts it."""
    over = case.number % 2 == 0
    stage.pods.write(case, case.script(f"{FILL}; {WAIT}" if over else WAIT), disk=DISK if over else "")
    pod = _started(stage, case)
    if over:
        case.inject(f"30 MiB in a volume of {DISK}")
    else:
        case.refuted = not stage.pods.evict(pod)
        case.inject(f"Eviction API on {pod}")
    case.end(240)
    if over:
        at, text = stage.pods.eviction(pod)
        case.evidence.append(f"{EVICTED}{text}" if text else "no event Evicted")
        case.known_at = at


def was_evicted(case: Case, told: Story) -> bool:
    """The API server says so, in one of its ways; a pod whose containers end well is Succeeded, and its event tells."""
    by_event = any(each.startswith(EVICTED) for each in case.evidence)
    return by_event or bool(told.evicted) or told.disruption == EVICTION


def out_of_memory(stage: Stage, cases: Sequence[Case]) -> None:
    """The process that exec started uses more than the pod has; the pod lives on, and its status knows nothing of it."""
    stage.pods.make(cases, memory=MEMORY)

    def one(case: Case) -> None:
        greedy = "sleep 2; python3 -c 'x = bytearray(400 << 20)' || exit $?"
        stage.pods.write(case, case.script(greedy), own=False, memory=MEMORY)
        pod = stage.pods.pod(case)
        case.uid = pod["metadata"]["uid"]
        case.begin_and_wait()
        case.inject(f"400 MiB used of {MEMORY} by a process of exec")
        case.end()
        kills = stage.pods.oom_kills(pod["metadata"]["name"])
        case.evidence.append(f"the kernel's oom_kill counter of its container {kills}")
        case.refuted = kills == 0

    stage.side_by_side(cases, one)


def lived_on(case: Case, told: Story) -> bool:
    """The pod is as it was."""
    return told.phase == "Running" and told.restarts == 0


def _started(stage: Stage, case: Case) -> str:
    """Starts the driver and waits until the command runs; the name of the pod."""
    case.begin_and_wait()
    pod = stage.pods.pod(case)
    case.uid = pod["metadata"]["uid"]
    time.sleep(case.chance.uniform(0, 3))
    if not case.uid:
        raise CannotPlay("the pod has no uid")
    return str(pod["metadata"]["name"])


KINDS = (
    Kind(name="pod-evicted", site="pods", play=each(evicted), proof=was_evicted, right=frozenset({FailureKind.PREEMPTED})),
    Kind(name="pod-deleted", site="pods", play=each(deleted), proof=was_deleted, right=frozenset({FailureKind.CANCELLED})),
    Kind(
        name="pod-memory", site="pods", play=out_of_memory, proof=lived_on, right=frozenset({FailureKind.OUT_OF_MEMORY}),
    ),
)  # fmt: skip
