"""Whether a pod that has not started still can, and the deadlines of that wait. Pure: decided by pods, events and a clock."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from medweave_connectors.sites.pods.objects.pod import ClusterEvent, Container, Pod
from medweave_connectors.sites.pods.objects.pod_states import PULLS, PodState, judge, termination_messages

NEVER_S = 3.0  # a pod that can never start must be seen as such in two checks this far apart
_REFUSED_PODS = "FailedCreate"  # event of a workload whose pods the cluster rejects
_SCALE_UPS = frozenset(("TriggeredScaleUp", "Nominated"))  # of cluster-autoscaler and Karpenter: a node is being added
# Events of a pod or of its claims with the reason why a Pending pod waits.
_TROUBLE = frozenset(
    ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "ProvisioningFailed", "FailedBinding")
)
# Final answers of a registry; any other answer (5xx, no answer) may change.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|does not exist|unauthorized|forbidden|denied|\b40[134]\b", re.IGNORECASE
)
_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*"(: )?')
# Rejections by admission plugins that apply to every pod of a workload; an unavailable webhook is not among them.
_NOT_ADMITTED = re.compile(
    r"forbidden|denied the request|exceeded quota|violates PodSecurity|is invalid", re.IGNORECASE
)


class StartState(StrEnum):
    """Prospect of a pod that should become ready."""

    READY = "ready"
    STARTING = "starting"  # nothing blocks it
    WAITING = "waiting"  # for something that may change: a node, a volume, a registry, a container that does not crash
    NEVER = "never"  # not without a change by the user or an administrator


class WaitEnd(StrEnum):
    """Why a wait for pods is over."""

    NEVER = "a pod can never start"
    WAITED = "pendingTimeout"
    LATE = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """Accumulated times of a wait for pods.

    Attributes:
        looked_s: time of the last check, s; None before the first.
        starting_s: time in which nothing blocked them, s.
        waiting_s: time in which one of them waited, since the last scale-up, s.
        never_since: by name, the time since which a pod is known never to start, s.
        scale_ups: events of autoscalers that were counted, by their ids.
    """

    looked_s: float | None = None
    starting_s: float = 0.0
    waiting_s: float = 0.0
    never_since: Mapping[str, float] = field(default_factory=dict)
    scale_ups: frozenset[str] = frozenset()

    def after(
        self, now_s: float, states: Mapping[str, tuple[StartState, str]], events: Collection[ClusterEvent]
    ) -> WaitTimes:
        """Return the times after another check. A scale-up restarts the waiting time, once per event.

        Args:
            now_s: time of the check, s on a monotonic clock.
            states: of the pods, by name, with reasons.
            events: of these pods.
        """
        passed_s = 0.0 if self.looked_s is None else now_s - self.looked_s
        waits = any(state is StartState.WAITING for state, _ in states.values())
        scale_ups = self.scale_ups | {event.id for event in events if event.reason in _SCALE_UPS}
        return WaitTimes(
            looked_s=now_s,
            starting_s=self.starting_s + (0.0 if waits else passed_s),
            waiting_s=0.0 if scale_ups != self.scale_ups else self.waiting_s + (passed_s if waits else 0.0),
            never_since={
                name: self.never_since.get(name, now_s)
                for name, (state, _) in states.items()
                if state is StartState.NEVER
            },
            scale_ups=scale_ups,
        )

    def end(self, *, timeout_s: float, pending_timeout_s: float) -> WaitEnd | None:
        """Return why to stop waiting; None to continue.

        Args:
            timeout_s: longest time to start when nothing blocks the pods, s.
            pending_timeout_s: longest time to wait for something, s.
        """
        assert self.looked_s is not None, "no check yet"
        if any(self.looked_s - since >= NEVER_S for since in self.never_since.values()):
            return WaitEnd.NEVER
        if self.waiting_s >= pending_timeout_s:
            return WaitEnd.WAITED
        return WaitEnd.LATE if self.starting_s > timeout_s else None


def judge_start(pod: Pod, events: Sequence[ClusterEvent]) -> tuple[StartState, str]:
    """Return the prospect of a pod, and Kubernetes' reason (empty for a ready pod).

    Args:
        events: those of its namespace, oldest first; none where the account may not read them.
    """
    state, reason = judge(pod)
    mine = [event for event in events if event.name in (pod.name, *pod.claims)]
    if state is PodState.READY:
        return StartState.READY, ""
    if state is PodState.GONE:
        # Its workload creates another pod, unless this one failed at its start.
        return (StartState.NEVER if pod.phase == "Failed" else StartState.STARTING), reason
    if state is PodState.STUCK:
        return _judge_containers(pod, mine, reason)
    trouble = next((event for event in reversed(mine) if event.reason in _TROUBLE), None)
    why = reason if trouble is None or trouble.text in reason else f"{reason}; {trouble.reason}: {trouble.text}"
    if state is PodState.UNSCHEDULABLE or (trouble is not None and pod.phase == "Pending"):
        return StartState.WAITING, why
    return StartState.STARTING, reason


def judge_missing_pods(name: str, events: Sequence[ClusterEvent]) -> tuple[StartState, str]:
    """Return the prospect of pods that a workload should have created but has not, and the reason.

    Args:
        name: of the workload; its ReplicaSet's name begins with it.
    """
    own_events = [event for event in events if event.name == name or event.name.startswith(f"{name}-")]
    refused = next((event for event in reversed(own_events) if event.reason == _REFUSED_PODS), None)
    if refused is None:
        return StartState.STARTING, ""
    never = _NOT_ADMITTED.search(refused.text) is not None
    return (StartState.NEVER if never else StartState.WAITING), f"{refused.reason}: {refused.text}"


def _judge_containers(pod: Pod, mine: Sequence[ClusterEvent], reason: str) -> tuple[StartState, str]:
    containers = (*pod.init_containers, *pod.containers)
    # An older kubelet reports the reason only in the event, not in the pod.
    pull_errors = [event.text for event in mine if event.reason == "Failed" and event.text.startswith("Failed to pull")]
    pulls = [
        (container, _pull_reason(container, pull_errors)) for container in containers if container.waiting in PULLS
    ]
    for container, why in pulls:
        # The name of the image is no answer: "denied/x:404".
        if _NO_SUCH_IMAGE.search(why.replace(container.image, "")):
            return StartState.NEVER, why
    if pulls:
        return StartState.WAITING, pulls[0][1]
    if any(container.waiting == "CrashLoopBackOff" for container in containers):
        message = " ".join(termination_messages(pod).split())
        return StartState.WAITING, f"{reason}: {message}" if message else reason
    return StartState.NEVER, reason  # its image's name, its settings or its first program are wrong


def _pull_reason(container: Container, pull_errors: Sequence[str]) -> str:
    """Return why the image is missing, in the same words during a pull and between two attempts."""
    cause = _BACK_OFF.sub("", container.waiting_message) or next(iter(pull_errors[-1:]), container.waiting_message)
    return f"ErrImagePull: {cause.removeprefix('ErrImagePull: ')} (container {container.name})"
