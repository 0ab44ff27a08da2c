"""Whether a pod that has not started still may, and how long that is waited for. Pure: pods, events and a clock decide."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from medweave_connectors.sites.pods.startup.pod import Container, Event, Pod
from medweave_connectors.sites.pods.startup.states import PULLS, PodState, judge, last_words

NEVER_S = 3.0  # what can never start is seen to be so in two looks that far apart
_REFUSED_PODS = "FailedCreate"  # event of a workload whose pods the cluster does not take
_SCALE_UPS = frozenset(("TriggeredScaleUp", "Nominated"))  # of cluster-autoscaler and Karpenter: a node is on its way
# Events of a pod, or of its claims, that tell what it waits for where its state says no more than Pending.
_TROUBLE = frozenset(
    ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "ProvisioningFailed", "FailedBinding")
)
# A registry that says so has the image no more at a second look; any other answer (5xx, no answer) may change.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|does not exist|unauthorized|forbidden|denied|\b40[134]\b", re.IGNORECASE
)
_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*"(: )?')
# What an admission says about each pod of a workload; a webhook that does not answer is none of it.
_NOT_ADMITTED = re.compile(
    r"forbidden|denied the request|exceeded quota|violates PodSecurity|is invalid", re.IGNORECASE
)


class Hope(StrEnum):
    """What can be hoped of a pod that shall become ready."""

    READY = "ready"
    STARTING = "starting"  # nothing is in its way
    WAITING = "waiting"  # for what may come by itself: a node, a volume, a registry, a container that does not crash
    NEVER = "never"  # not before somebody changes something


class End(StrEnum):
    """Why a wait for pods is over."""

    NEVER = "a pod can never start"
    WAITED = "pendingTimeout"
    LATE = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """What the looks at some pods add up to.

    Attributes:
        looked_s: moment of the last look, s; None before the first.
        starting_s: time in which nothing was in their way, s.
        waiting_s: time in which one of them waited for something, since the last scale-up, s.
        never_since: name to the moment since which it is known that it can never start, s.
        scale_ups: events of autoscalers that were counted, by their ids.
    """

    looked_s: float | None = None
    starting_s: float = 0.0
    waiting_s: float = 0.0
    never_since: Mapping[str, float] = field(default_factory=dict)
    scale_ups: frozenset[str] = frozenset()

    def after(self, now_s: float, hopes: Mapping[str, tuple[Hope, str]], events: Collection[Event]) -> Waited:
        """The same after another look. A scale-up starts the time of waiting anew, each event once.

        Args:
            now_s: moment of the look, s on a clock that only goes on.
            hopes: of each pod, by name.
            events: of these pods.
        """
        passed_s = 0.0 if self.looked_s is None else now_s - self.looked_s
        waits = any(each is Hope.WAITING for each, _ in hopes.values())
        scale_ups = self.scale_ups | {each.id for each in events if each.reason in _SCALE_UPS}
        return Waited(
            looked_s=now_s,
            starting_s=self.starting_s + (0.0 if waits else passed_s),
            waiting_s=0.0 if scale_ups != self.scale_ups else self.waiting_s + (passed_s if waits else 0.0),
            never_since={
                name: self.never_since.get(name, now_s) for name, (each, _) in hopes.items() if each is Hope.NEVER
            },
            scale_ups=scale_ups,
        )

    def end(self, *, timeout_s: float, pending_timeout_s: float) -> End | None:
        """Why there is no more use in waiting; None while there is.

        Args:
            timeout_s: longest time to start when nothing is in the way, s.
            pending_timeout_s: longest time to wait for something, s.
        """
        assert self.looked_s is not None, "no look yet"
        if any(self.looked_s - since >= NEVER_S for since in self.never_since.values()):
            return End.NEVER
        if self.waiting_s >= pending_timeout_s:
            return End.WAITED
        return End.LATE if self.starting_s > timeout_s else None


def hope(pod: Pod, events: Sequence[Event]) -> tuple[Hope, str]:
    """What can be hoped of a pod, and why, in Kubernetes' words (empty for a ready one).

    Args:
        events: those of its namespace, oldest first; none where the account may not read them.
    """
    state, reason = judge(pod)
    mine = [each for each in events if each.name in (pod.name, *pod.claims)]
    if state is PodState.READY:
        return Hope.READY, ""
    if state is PodState.GONE:
        # Its workload makes another one, unless it has failed already at its start.
        return (Hope.NEVER if pod.phase == "Failed" else Hope.STARTING), reason
    if state is PodState.STUCK:
        return _of_containers(pod, mine, reason)
    trouble = next((each for each in reversed(mine) if each.reason in _TROUBLE), None)
    why = reason if trouble is None or trouble.text in reason else f"{reason}; {trouble.reason}: {trouble.text}"
    if state is PodState.UNSCHEDULABLE or (trouble is not None and pod.phase == "Pending"):
        return Hope.WAITING, why
    return Hope.STARTING, reason


def hope_of_missing(name: str, events: Sequence[Event]) -> tuple[Hope, str]:
    """The same of pods that a workload should have made and that are not there.

    Args:
        name: of the workload; its ReplicaSet's name begins with it.
    """
    told = [each for each in events if each.name == name or each.name.startswith(f"{name}-")]
    refused = next((each for each in reversed(told) if each.reason == _REFUSED_PODS), None)
    if refused is None:
        return Hope.STARTING, ""
    never = _NOT_ADMITTED.search(refused.text) is not None
    return (Hope.NEVER if never else Hope.WAITING), f"{refused.reason}: {refused.text}"


def _of_containers(pod: Pod, mine: Sequence[Event], reason: str) -> tuple[Hope, str]:
    containers = (*pod.init_containers, *pod.containers)
    # An older kubelet says in the pod that it waits, and only in the event why.
    told = [each.text for each in mine if each.reason == "Failed" and each.text.startswith("Failed to pull")]
    pulls = [(each, _pull(each, told)) for each in containers if each.waiting in PULLS]
    for container, why in pulls:
        # The image's own name is no answer: "denied/x:404".
        if _NO_SUCH_IMAGE.search(why.replace(container.image, "")):
            return Hope.NEVER, why
    if pulls:
        return Hope.WAITING, pulls[0][1]
    if any(each.waiting == "CrashLoopBackOff" for each in containers):
        said = " ".join(last_words(pod).split())
        return Hope.WAITING, f"{reason}: {said}" if said else reason
    return Hope.NEVER, reason  # its image's name, its settings or its first program are wrong


def _pull(container: Container, told: Sequence[str]) -> str:
    """Why the image does not come, in the same words whether the kubelet tries just now or waits between two tries."""
    cause = _BACK_OFF.sub("", container.waiting_message) or next(iter(told[-1:]), container.waiting_message)
    return f"ErrImagePull: {cause.removeprefix('ErrImagePull: ')} (container {container.name})"
