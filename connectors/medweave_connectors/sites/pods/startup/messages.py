"""What people read about pods that do not start: each reason once, with all the pods that have it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from medweave_connectors.sites.pods.startup.deadlines import Hope
from medweave_connectors.sites.pods.startup.pod import Event, Pod
from medweave_connectors.sites.pods.startup.states import PodState, judge, last_words

LINE = 300  # characters of one event
# Events of a start that goes well, or that repeat what the pods say themselves.
_DULL = frozenset(
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
_OTHERS = "…"


def tell_pods(pods: Sequence[Pod]) -> list[str]:
    """Lines about pods: `w-0, w-1: stuck, ImagePullBackOff: …`, and what their containers said before they ended."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for pod in pods:
        state, reason = judge(pod)
        line = f"{state}, {reason}" if reason else str(state)
        said_last = last_words(pod) if state == PodState.STUCK else ""
        key = tuple(_without_name(text, pod.name) for text in (line, *said_last.splitlines()))
        groups.setdefault(key, []).append(pod.name)
    told: list[str] = []
    for (first, *words), names in groups.items():
        told.append(f"{', '.join(names)}: {first}")
        said = [f"  {each}" for each in words]
        told += said if not set(said) <= set(told) else []
    return told or ["no pods"]


def tell_waiting(hopes: Mapping[str, tuple[Hope, str]]) -> str:
    """`w-0, w-1: Unschedulable: …; w-2: …`: what pods wait for, each reason once; empty where none waits.

    Args:
        hopes: by name of a pod or a workload.
    """
    groups: dict[str, list[str]] = {}
    for name, (each, reason) in hopes.items():
        if each is Hope.WAITING:
            groups.setdefault(_without_name(reason, name)[:LINE], []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in groups.items())


def tell_events(events: Sequence[Event], pods: Sequence[Pod]) -> list[str]:
    """Lines about events, oldest first, each text once, without those that add nothing to what the pods' states say."""
    waiting = [each.waiting_message for pod in pods for each in (*pod.init_containers, *pod.containers)]
    known = [text for text in waiting if text] + [judge(pod)[1] for pod in pods if judge(pod)[1]]
    stuck = any(judge(pod)[0] == PodState.STUCK for pod in pods)
    lines: list[str] = []
    for name, reason, text, _ in events:
        short = _without_name(text, name)
        line = f"{reason}: {short}"[:LINE]
        dull = reason in _DULL or (stuck and reason == "Unhealthy") or len(short.split()) < 3
        if not dull and line not in lines and not any(each in text or text in each for each in known):
            lines.append(line)
    return lines


def _without_name(text: str, name: str) -> str:
    # Names of pods differ in every line that is otherwise the same; the owner's name is their beginning.
    return re.sub(rf"{re.escape(name)}[-\w.]*(\([-\w]*\))?", _OTHERS, text)
