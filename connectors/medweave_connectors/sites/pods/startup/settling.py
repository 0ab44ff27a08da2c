"""Recently started pods: without a probe a container counts as ready as soon as it starts, even if it crashes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from medweave_connectors.sites.pods.objects.pod import Container, Pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, judge

SETTLE_S = 2.0  # the kubelet checks once a second for ended containers, and reports to the API server a little later
SETTLE_AGAIN_S = 10.0  # a restarted container may need longer to crash again


class Start(NamedTuple):
    """One start of a container, identified by its time."""

    uid: str
    container: str
    started: str


@dataclass(frozen=True, slots=True)
class RecentStarts:
    """First observation of container starts, to detect containers that crash soon.

    Attributes:
        since: time at which a start was first seen, s.
    """

    since: Mapping[Start, float] = field(default_factory=dict)

    def after(self, now_s: float, pods: Iterable[Pod]) -> RecentStarts:
        """Return the observations after another check; pods that the check missed are not dropped.

        Args:
            now_s: time of the check, s on a monotonic clock.
        """
        seen = [_start(pod, container) for pod in pods for container in pod.containers]
        return RecentStarts(dict.fromkeys(seen, now_s) | dict(self.since))

    def settled(self, now_s: float, pod: Pod) -> Pod:
        """Return the pod to be judged: not ready if one of its containers has just started and has no probe.

        Args:
            now_s: time of the last check.
        """
        young = {container.name: container for container in pod.containers if self._is_young(now_s, pod, container)}
        if not young or judge(pod)[0] is not PodState.READY:
            return pod
        if any(container.restarts for container in young.values()):
            loops = tuple(
                dataclasses.replace(container, waiting="CrashLoopBackOff")
                if container.name in young and container.restarts
                else container
                for container in pod.containers
            )
            return dataclasses.replace(pod, containers=loops)
        why = f"container {', '.join(young)} has just started"
        return dataclasses.replace(pod, conditions={**pod.conditions, "Ready": ("False", "starting", why)})

    def _is_young(self, now_s: float, pod: Pod, container: Container) -> bool:
        if container.probed or not container.started:
            return False
        needed_s = SETTLE_AGAIN_S if container.restarts else SETTLE_S
        return now_s - self.since.get(_start(pod, container), now_s) < needed_s


def _start(pod: Pod, container: Container) -> Start:
    return Start(pod.uid, container.name, container.started)
