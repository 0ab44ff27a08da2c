"""What became of a pod: one table of the reasons that Kubernetes gives. Pure.

An unknown word is `UNKNOWN`, and nothing is concluded from it.
"""

from __future__ import annotations

from enum import StrEnum

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.sites.pods.startup.pod import Container, Pod


class PodState(StrEnum):
    """Where a pod stands on its way to a step."""

    READY = "ready"
    STARTING = "starting"
    UNSCHEDULABLE = "unschedulable"
    STUCK = "stuck"  # a container of it does not start
    GONE = "gone"  # it runs no more
    UNKNOWN = "unknown"


# Reasons for which a container waits and does not start by itself at once; `patience` says which of them may still pass.
PULLS = frozenset(("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"))
_STUCK = PULLS | {
    "ErrImageNeverPull",
    "InvalidImageName",
    "SignatureValidationFailed",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "CrashLoopBackOff",
}
_NO_IMAGE = PULLS | {"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"}


def judge(pod: Pod) -> tuple[PodState, str]:
    """A pod's state, and the reason in Kubernetes' words (empty for a ready one)."""
    if pod.deleting:
        _, reason, message = _disruption(pod)
        return PodState.GONE, f"is being deleted ({_said(reason, message)})" if reason else "is being deleted"
    if pod.phase == "Failed":
        return PodState.GONE, _said(pod.reason or "Failed", pod.message)
    if pod.phase == "Succeeded":
        return PodState.GONE, "has ended"
    for container in (*pod.init_containers, *pod.containers):
        if container.waiting in _STUCK:
            return PodState.STUCK, _waiting(container)
    scheduled = pod.conditions.get("PodScheduled", ("", "", ""))
    if scheduled[0] == "False":
        return PodState.UNSCHEDULABLE, _said(scheduled[1], scheduled[2])
    if pod.phase == "Pending":
        waiting = next((each for each in (*pod.init_containers, *pod.containers) if each.waiting), None)
        return PodState.STARTING, _waiting(waiting) if waiting else "Pending"
    if pod.phase == "Running":
        # Only the condition Ready is asked: others may be False in a pod that works (a stock connector wants all of them).
        status, reason, message = pod.conditions.get("Ready", ("", "", ""))
        if status == "True":
            return PodState.READY, ""
        if node := silent_node(pod):
            return PodState.STARTING, f"its node {node} does not answer"
        return PodState.STARTING, _said(reason or "not ready", message)
    return PodState.UNKNOWN, _said(pod.phase or "no phase", pod.message)


def silent_node(pod: Pod) -> str:
    """The node of a pod, where the cluster has not heard of it for a while (40 or 50 s as a rule); empty while it has.

    The cluster then makes the pod's condition Ready False, and gives no reason there; a kubelet always gives one.
    """
    ready, containers = pod.conditions.get("Ready"), pod.conditions.get("ContainersReady", ("", "", ""))
    return pod.node if ready is not None and ready[:2] == ("False", "") and containers[0] == "True" else ""


def missing_image(pod: Pod) -> str:
    """The image that a container of the pod waits for in vain; empty if none does."""
    containers = (*pod.init_containers, *pod.containers)
    return next((each.image or "?" for each in containers if each.waiting in _NO_IMAGE), "")


def loss(before: Pod, now: Pod | None, container: str) -> str:
    """Why a pod that ran a command does no longer; empty while all is well.

    Args:
        before: the pod when the command started.
        now: the same pod now; None if there is none of its name.
        container: name of the container with the command.
    """
    if now is None:
        return f"pod {before.name} is gone"
    if now.uid != before.uid:
        return f"pod {before.name} was replaced by another one"
    state, reason = judge(now)
    if state == PodState.GONE:
        return f"pod {before.name} {reason}" if reason.startswith(("is ", "has ")) else f"pod {before.name}: {reason}"
    if node := silent_node(now):
        return f"pod {before.name}: its node {node} does not answer"
    then, current = before.container(container), now.container(container)
    if then is not None and current is not None and current.restarts > then.restarts:
        return f"pod {before.name}: container {container} was restarted after {_ended(current)}"
    return ""


# Why a pod is taken away (reasons of its condition DisruptionTarget), and why it has failed (its own reasons).
_KINDS = {
    "EvictionByEvictionAPI": FailureKind.PREEMPTED,
    "PreemptionByScheduler": FailureKind.PREEMPTED,
    "TerminationByKubelet": FailureKind.PREEMPTED,
    "DeletionByTaintManager": FailureKind.NODE_FAIL,
    "DeletionByPodGC": FailureKind.NODE_FAIL,
    "Evicted": FailureKind.PREEMPTED,
    "Preempting": FailureKind.PREEMPTED,
    "NodeLost": FailureKind.NODE_FAIL,
    "NodeShutdown": FailureKind.NODE_FAIL,
    "Terminated": FailureKind.NODE_FAIL,
    "DeadlineExceeded": FailureKind.TIMEOUT,
}


def loss_kind(before: Pod, now: Pod | None, container: str) -> FailureKind:
    """The kind of a loss that `loss` tells of; somebody who deletes a pod cancels what runs in it."""
    if now is None or now.uid != before.uid:
        return FailureKind.CANCELLED
    disruption = _disruption(now)[1]
    if now.deleting or now.phase == "Failed":
        known = _KINDS.get(disruption) or _KINDS.get(now.reason)
        return known or (FailureKind.CANCELLED if now.deleting else FailureKind.UNKNOWN)
    if silent_node(now):
        return FailureKind.NODE_FAIL
    current = now.container(container)
    return FailureKind.OUT_OF_MEMORY if current and current.ended == "OOMKilled" else FailureKind.UNKNOWN


def node_lost(pod: Pod, why: str) -> str:
    """What is told of a command whose pod was lost with its node.

    Args:
        why: in the cluster's words.
    """
    return (
        f"node {pod.node} is lost, and with it what ran in pod {pod.name}.\n"
        f"  seen:     {why}\n"
        "  expected: a node that answers until the command has ended\n"
        "  do:       run again; tell the operators of the cluster if it happens again"
    )


def end_kind(pod: Pod, container: str) -> FailureKind:
    """The kind of failure of a pod that has run one command; a command that ended by itself is none of the site's."""
    known = _KINDS.get(_disruption(pod)[1]) or _KINDS.get(pod.reason)
    found = pod.container(container)
    if known is not None or found is None:
        return known or FailureKind.UNKNOWN
    if found.ended == "OOMKilled":
        return FailureKind.OUT_OF_MEMORY
    if pod.deleting:
        return FailureKind.CANCELLED
    return FailureKind.STEP_FAILED if found.ended_code else FailureKind.UNKNOWN


def kind_of_event(reason: str) -> FailureKind | None:
    """The kind of loss that an event of a pod tells of; None for any other event."""
    return _KINDS.get(reason)


def describe(pod: Pod) -> str:
    """One line about a pod for an error message: `w-0: starting, ContainersNotReady`."""
    state, reason = judge(pod)
    return f"{pod.name}: {state}" + (f", {reason}" if reason else "")


def last_words(pod: Pod) -> str:
    """What the containers that ended said last; empty where they said nothing."""
    said = [each.last_words for each in (*pod.init_containers, *pod.containers) if each.last_words]
    return "\n".join(dict.fromkeys(said))


def _disruption(pod: Pod) -> tuple[str, str, str]:
    target = pod.conditions.get("DisruptionTarget", ("", "", ""))
    return target if target[0] == "True" else ("", "", "")


def _ended(container: Container) -> str:
    code = "" if container.ended_code is None else f", exit code {container.ended_code}"
    return f"{container.ended or 'an unknown end'}{code}"


def _waiting(container: Container) -> str:
    if container.waiting == "CrashLoopBackOff" and container.ended:
        return f"{container.waiting}: container {container.name} ends as soon as it starts, with {_ended(container)}"
    return f"{_said(container.waiting, container.waiting_message)} (container {container.name})"


def _said(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message and message != reason else reason
