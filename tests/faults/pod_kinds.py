"""Faults that end pods, or processes in them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from faults.case import CannotPlay, Case, Kind
from faults.pod_site import PodHistory
from faults.stage import Stage, for_each_case
from medweave_connectors.jobs.retries.policy import FailureKind

WAIT = "sleep 900"
EVICTED, EVICTION = "event Evicted: ", "EvictionByEvictionAPI"
MEMORY, DISK = "96Mi", "10Mi"
FILL = "head -c 31457280 /dev/zero > filler"  # 30 MiB


def deleted(stage: Stage, case: Case) -> None:
    """Delete the pod."""
    stage.pods.write(case, case.script(WAIT))
    pod = _started(stage, case)
    output = stage.pods.admin("delete", "pod", pod, "--wait=false")
    case.inject(f"kubectl delete pod {pod}")
    case.evidence.append(f"the API server: {output.strip()}")
    case.refuted = "deleted" not in output
    case.end()


def was_deleted(case: Case, history: PodHistory) -> bool:
    """Return whether the API server reported the deletion of the pod before anything else."""
    return history.deleted and not history.evicted


def evicted(stage: Stage, case: Case) -> None:
    """Evict the pod by the Eviction API; every second one exceeds its volume's limit instead, and the kubelet evicts it."""
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


def was_evicted(case: Case, history: PodHistory) -> bool:
    """Return whether the API server reported an eviction by status, condition or event (a pod that ends with 0 is Succeeded)."""
    by_event = any(text.startswith(EVICTED) for text in case.evidence)
    return by_event or bool(history.evicted) or history.disruption == EVICTION


def out_of_memory(stage: Stage, cases: Sequence[Case]) -> None:
    """Run a process by exec that uses more memory than the pod has; the pod keeps running, and its status does not show it."""
    stage.pods.make(cases, memory=MEMORY)

    def one(case: Case) -> None:
        greedy = "sleep 2; python3 -c 'x = bytearray(400 << 20)' || exit $?"
        stage.pods.write(case, case.script(greedy), creates_pod=False, memory=MEMORY)
        pod = stage.pods.pod(case)
        case.uid = pod["metadata"]["uid"]
        case.begin_and_wait()
        case.inject(f"400 MiB used of {MEMORY} by a process of exec")
        case.end()
        kills = stage.pods.oom_kills(pod["metadata"]["name"])
        case.evidence.append(f"the kernel's oom_kill counter of its container {kills}")
        case.refuted = kills == 0

    stage.side_by_side(cases, one)


def lived_on(case: Case, history: PodHistory) -> bool:
    """Return whether the pod is unchanged."""
    return history.phase == "Running" and history.restarts == 0


def _started(stage: Stage, case: Case) -> str:
    """Start the driver and wait until the command runs; return the name of the pod."""
    case.begin_and_wait()
    pod = stage.pods.pod(case)
    case.uid = pod["metadata"]["uid"]
    time.sleep(case.chance.uniform(0, 3))
    if not case.uid:
        raise CannotPlay("the pod has no uid")
    return str(pod["metadata"]["name"])


KINDS = (
    Kind(
        name="pod-evicted",
        site="pods",
        play=for_each_case(evicted),
        proof=was_evicted,
        right=frozenset({FailureKind.PREEMPTED}),
    ),
    Kind(
        name="pod-deleted",
        site="pods",
        play=for_each_case(deleted),
        proof=was_deleted,
        right=frozenset({FailureKind.CANCELLED}),
    ),
    Kind(
        name="pod-memory",
        site="pods",
        play=out_of_memory,
        proof=lived_on,
        right=frozenset({FailureKind.OUT_OF_MEMORY}),
    ),
)
