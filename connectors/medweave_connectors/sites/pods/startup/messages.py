"""Messages about pods that do not start, grouped by reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from medweave_connectors.sites.pods.objects.pod import ClusterEvent, Pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, judge, termination_messages
from medweave_connectors.sites.pods.startup.deadlines import StartState

LINE = 300  # characters of one event
# Events of a normal start, or that repeat the state of the pods.
_ROUTINE = frozenset(
    (
        "Scheduled",
        "Pulling",
        "Pulled",
        "Created",
        "Started",
        "SuccessfulCreate",
        "ScalingReplicaSet",
        "BackOff",
        "Killing",
    )
)
_ELLIPSIS = "…"


def describe_pods(pods: Sequence[Pod]) -> list[str]:
    """Return lines about pods, `w-0, w-1: stuck, ImagePullBackOff: …`, and the termination messages of their containers."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for pod in pods:
        state, reason = judge(pod)
        line = f"{state}, {reason}" if reason else str(state)
        said_last = termination_messages(pod) if state == PodState.STUCK else ""
        key = tuple(_without_name(text, pod.name) for text in (line, *said_last.splitlines()))
        groups.setdefault(key, []).append(pod.name)
    lines: list[str] = []
    for (first, *words), names in groups.items():
        lines.append(f"{', '.join(names)}: {first}")
        details = [f"  {word}" for word in words]
        lines += details if not set(details) <= set(lines) else []
    return lines or ["no pods"]


def describe_waiting(states: Mapping[str, tuple[StartState, str]]) -> str:
    """Return why pods wait, grouped by reason: `w-0, w-1: Unschedulable: …; w-2: …`; empty if none waits.

    Args:
        states: by name of a pod or a workload, with reasons.
    """
    groups: dict[str, list[str]] = {}
    for name, (state, reason) in states.items():
        if state is StartState.WAITING:
            groups.setdefault(_without_name(reason, name)[:LINE], []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in groups.items())


def describe_events(events: Sequence[ClusterEvent], pods: Sequence[Pod]) -> list[str]:
    """Return lines about events, oldest first, without duplicates and without those that the pods' states already contain."""
    waiting = [container.waiting_message for pod in pods for container in (*pod.init_containers, *pod.containers)]
    known = [text for text in waiting if text] + [judge(pod)[1] for pod in pods if judge(pod)[1]]
    stuck = any(judge(pod)[0] == PodState.STUCK for pod in pods)
    lines: list[str] = []
    for name, reason, text, _ in events:
        short = _without_name(text, name)
        line = f"{reason}: {short}"[:LINE]
        dull = reason in _ROUTINE or (stuck and reason == "Unhealthy") or len(short.split()) < 3
        if not dull and line not in lines and not any(name in text or text in name for name in known):
            lines.append(line)
    return lines


def _without_name(text: str, name: str) -> str:
    # Names of pods differ in every line that is otherwise the same; the owner's name is their beginning.
    return re.sub(rf"{re.escape(name)}[-\w.]*(\([-\w]*\))?", _ELLIPSIS, text)
