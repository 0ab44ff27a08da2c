"""Ready pods that are not believed yet: without a probe a container is ready as soon as it starts, also one that crashes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from medweave_connectors.sites.pods.startup.pod import Container, Pod
from medweave_connectors.sites.pods.startup.states import PodState, judge

SETTLE_S = 2.0  # the kubelet looks once a second for what has ended, and the API server hears of it a little later
SETTLE_AGAIN_S = 10.0  # one that has ended before may need longer to end again


class Start(NamedTuple):
    """One start of a container; the next one has another time."""

    uid: str
    container: str
    started: str


@dataclass(frozen=True, slots=True)
class Doubts:
    """What is remembered between the looks at some pods.

    Attributes:
        since: the moment at which each start was first seen, s.
    """

    since: Mapping[Start, float] = field(default_factory=dict)

    def after(self, now_s: float, pods: Iterable[Pod]) -> Doubts:
        """The same after another look; what one look misses, as no answer came, is not forgotten.

        Args:
            now_s: moment of the look, s on a clock that only goes on.
        """
        seen = [_start(pod, container) for pod in pods for container in pod.containers]
        return Doubts(dict.fromkeys(seen, now_s) | dict(self.since))

    def doubted(self, now_s: float, pod: Pod) -> Pod:
        """The pod as it is to be judged: not ready where one of its containers has just started and nothing probes it.

        Args:
            now_s: moment of the last look.
        """
        young = {each.name: each for each in pod.containers if self._is_young(now_s, pod, each)}
        if not young or judge(pod)[0] is not PodState.READY:
            return pod
        if any(each.restarts for each in young.values()):
            loops = tuple(
                dataclasses.replace(each, waiting="CrashLoopBackOff") if each.name in young and each.restarts else each
                for each in pod.containers
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
