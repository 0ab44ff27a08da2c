"""States of pods and kinds of loss, in one table of Kubernetes' reasons. Pure.

An unknown reason is `UNKNOWN`, and nothing is concluded from it.
"""

from __future__ import annotations

from enum import StrEnum

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.sites.pods.objects.pod import Container, Pod


class PodState(StrEnum):
    """State of a pod, up to running a step."""

    READY = "ready"
    STARTING = "starting"
    UNSCHEDULABLE = "unschedulable"
    STUCK = "stuck"  # a container does not start
    GONE = "gone"  # it does not run any more
    UNKNOWN = "unknown"


# Reasons of waiting containers that do not start at once; `startup.deadlines` decides which of them may pass.
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
    """Return a pod's state, and Kubernetes' reason (empty for a ready pod)."""
    if pod.deleting:
        _, reason, message = _disruption(pod)
        return PodState.GONE, f"is being deleted ({_with_message(reason, message)})" if reason else "is being deleted"
    if pod.phase == "Failed":
        return PodState.GONE, _with_message(pod.reason or "Failed", pod.message)
    if pod.phase == "Succeeded":
        return PodState.GONE, "has ended"
    for container in (*pod.init_containers, *pod.containers):
        if container.waiting in _STUCK:
            return PodState.STUCK, _waiting(container)
    scheduled = pod.conditions.get("PodScheduled", ("", "", ""))
    if scheduled[0] == "False":
        return PodState.UNSCHEDULABLE, _with_message(scheduled[1], scheduled[2])
    if pod.phase == "Pending":
        waiting = next((container for container in (*pod.init_containers, *pod.containers) if container.waiting), None)
        return PodState.STARTING, _waiting(waiting) if waiting else "Pending"
    if pod.phase == "Running":
        # Only the condition Ready counts: others may be False in a pod that works (the stock connector requires all of them).
        status, reason, message = pod.conditions.get("Ready", ("", "", ""))
        if status == "True":
            return PodState.READY, ""
        if node := unresponsive_node(pod):
            return PodState.STARTING, f"its node {node} does not answer"
        return PodState.STARTING, _with_message(reason or "not ready", message)
    return PodState.UNKNOWN, _with_message(pod.phase or "no phase", pod.message)


def unresponsive_node(pod: Pod) -> str:
    """Return the node of a pod if the node has not answered the cluster for a while (40 or 50 s as a rule); empty otherwise.

    The cluster then sets the pod's condition Ready to False without a reason; a kubelet always states a reason.
    """
    ready, containers = pod.conditions.get("Ready"), pod.conditions.get("ContainersReady", ("", "", ""))
    return pod.node if ready is not None and ready[:2] == ("False", "") and containers[0] == "True" else ""


def missing_image(pod: Pod) -> str:
    """Return the image that a container of the pod cannot pull; empty if all can be pulled."""
    containers = (*pod.init_containers, *pod.containers)
    return next((container.image or "?" for container in containers if container.waiting in _NO_IMAGE), "")


def describe_loss(before: Pod, now: Pod | None, container: str) -> str:
    """Return why a pod can no longer run its command; empty if it can.

    Args:
        before: the pod when the command started.
        now: the same pod now; None if no pod has its name.
        container: name of the container with the command.
    """
    if now is None:
        return f"pod {before.name} is gone"
    if now.uid != before.uid:
        return f"pod {before.name} was replaced by another one"
    state, reason = judge(now)
    if state == PodState.GONE:
        return f"pod {before.name} {reason}" if reason.startswith(("is ", "has ")) else f"pod {before.name}: {reason}"
    if node := unresponsive_node(now):
        return f"pod {before.name}: its node {node} does not answer"
    then, current = before.container(container), now.container(container)
    if then is not None and current is not None and current.restarts > then.restarts:
        return f"pod {before.name}: container {container} was restarted after {_ended(current)}"
    return ""


# Reasons of the condition DisruptionTarget, and reasons of failed pods.
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
    """Return the kind of a loss that `loss` reports; a deleted pod counts as cancelled."""
    if now is None or now.uid != before.uid:
        return FailureKind.CANCELLED
    disruption = _disruption(now)[1]
    if now.deleting or now.phase == "Failed":
        known = _KINDS.get(disruption) or _KINDS.get(now.reason)
        return known or (FailureKind.CANCELLED if now.deleting else FailureKind.UNKNOWN)
    if unresponsive_node(now):
        return FailureKind.NODE_FAIL
    current = now.container(container)
    return FailureKind.OUT_OF_MEMORY if current and current.ended == "OOMKilled" else FailureKind.UNKNOWN


def describe_lost_node(pod: Pod, why: str) -> str:
    """Return the message about a command whose pod was lost with its node.

    Args:
        why: in the cluster's words.
    """
    return (
        f"node {pod.node} is lost, and with it the processes of pod {pod.name}.\n"
        f"  seen:     {why}\n"
        "  expected: a node that answers until the command has ended\n"
        "  do:       run again; inform the operators of the cluster if it happens again"
    )


def failure_kind(pod: Pod, container: str) -> FailureKind:
    """Return the kind of failure of a pod that ran one command; a command that failed without the site's doing is STEP_FAILED."""
    known = _KINDS.get(_disruption(pod)[1]) or _KINDS.get(pod.reason)
    spec = pod.container(container)
    if known is not None or spec is None:
        return known or FailureKind.UNKNOWN
    if spec.ended == "OOMKilled":
        return FailureKind.OUT_OF_MEMORY
    if pod.deleting:
        return FailureKind.CANCELLED
    return FailureKind.STEP_FAILED if spec.ended_code else FailureKind.UNKNOWN


def event_loss_kind(reason: str) -> FailureKind | None:
    """Return the kind of loss that an event of a pod reports; None for any other event."""
    return _KINDS.get(reason)


def describe(pod: Pod) -> str:
    """Return one line about a pod for an error message: `w-0: starting, ContainersNotReady`."""
    state, reason = judge(pod)
    return f"{pod.name}: {state}" + (f", {reason}" if reason else "")


def termination_messages(pod: Pod) -> str:
    """Return the termination messages of a pod's containers, one per line."""
    messages = [
        container.termination_message
        for container in (*pod.init_containers, *pod.containers)
        if container.termination_message
    ]
    return "\n".join(dict.fromkeys(messages))


def _disruption(pod: Pod) -> tuple[str, str, str]:
    target = pod.conditions.get("DisruptionTarget", ("", "", ""))
    return target if target[0] == "True" else ("", "", "")


def _ended(container: Container) -> str:
    code = "" if container.ended_code is None else f", exit code {container.ended_code}"
    return f"{container.ended or 'an unknown end'}{code}"


def _waiting(container: Container) -> str:
    if container.waiting == "CrashLoopBackOff" and container.ended:
        return f"{container.waiting}: container {container.name} ends as soon as it starts, with {_ended(container)}"
    return f"{_with_message(container.waiting, container.waiting_message)} (container {container.name})"


def _with_message(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message and message != reason else reason
