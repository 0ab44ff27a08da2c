"""Waiting for pods, with a deadline, and an error that says what was seen as soon as the wait is hopeless."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence

from medweave_connectors.pods.cluster import Cluster, Refused
from medweave_connectors.pods.errors import DeploymentRefused
from medweave_connectors.pods.pod import Pod
from medweave_connectors.pods.states import NODES_ARE_COMING, PodState, describe, judge, missing_image, stuck_after_s
from medweave_connectors.pods.words import tell_events, tell_pods
from medweave_connectors.pods.workloads import Workload
from medweave_connectors.record import console, current

POLL_S = 0.5
SAY_AFTER_S = 10.0
LAST_EVENTS = 6
_REFUSED_PODS = "FailedCreate"  # a quota, or the namespace's pod security: the pods never appear


class RunIsEnding(Exception):
    """There is no more need to wait: a signal came, or a step elsewhere has failed."""


def run_is_ending() -> bool:
    """True where the run's end is decided."""
    run = current()
    return run is not None and (run.signal_number is not None or run.engine_verdict is not None)


class Readiness:
    """One wait for all pods of a deployment.

    Args:
        key_of: the key of the deployment's config that describes the pods, given the image that they lack (empty: they lack none).
    """

    def __init__(
        self,
        deployment: str,
        cluster: Cluster,
        wanted: Sequence[Workload],
        timeout_s: float,
        key_of: Callable[[str], str],
    ) -> None:
        self._deployment, self._cluster, self._wanted, self._timeout_s = deployment, cluster, wanted, timeout_s
        self._key_of = key_of
        self._since = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self._clock = time.monotonic()
        self._stuck_since: dict[str, float] = {}

    async def wait(self) -> list[Pod]:
        """Waits until each workload has its number of ready pods; returns them.

        Raises:
            DeploymentRefused: a pod cannot start, or the deadline passed; the message has each pod's state and events.
            RunIsEnding: nobody needs the pods any more.
        """
        said = self._clock
        while True:
            if run_is_ending():
                raise RunIsEnding
            groups = await self._groups()
            short = [each for each, pods in groups if len(_ready(pods)) < each.replicas]
            pods = [pod for _, found in groups for pod in found]
            if not short:
                return _ready(pods)
            now = time.monotonic()
            if hopeless := await self._hopeless(pods, short, now):
                raise await self._failure(hopeless, pods, short)
            if now - self._clock > self._timeout_s:
                raise await self._failure(f"not ready after {self._timeout_s:.0f} s", pods, short)
            if now - said > SAY_AFTER_S:
                said = now
                waiting = "; ".join(describe(pod) for pod in pods if judge(pod)[0] != PodState.READY) or "no pods yet"
                console.say(
                    f"medweave: {self._deployment}: {len(_ready(pods))} of {self._expected()} pods ready; {waiting}"
                )
            await asyncio.sleep(POLL_S)

    async def _groups(self) -> list[tuple[Workload, list[Pod]]]:
        found = await asyncio.gather(
            *(self._cluster.pods(each.selector) for each in self._wanted), return_exceptions=True
        )  # one answer that fails is asked again; the deadline holds all the same
        groups = []
        for workload, pods in zip(self._wanted, found, strict=True):
            if isinstance(pods, BaseException) and not isinstance(pods, Refused):
                raise pods
            groups.append((workload, [] if isinstance(pods, BaseException) else pods))
        return groups

    async def _hopeless(self, pods: Sequence[Pod], short: Sequence[Workload], now: float) -> str:
        for pod in pods:
            patience = stuck_after_s(pod)
            if patience is None:
                self._stuck_since.pop(pod.uid, None)
            elif now - self._stuck_since.setdefault(pod.uid, now) >= patience and not await self._nodes_come(pod):
                return "its pods cannot start"
        if now - self._clock > 2 * POLL_S and len(pods) < self._expected():
            names = [name for each in short for name in (each.name, f"{each.name}-")]
            for _, reason, _ in await self._cluster.events(names, self._since):
                if reason == _REFUSED_PODS:
                    return "the cluster refuses to make its pods"
        return ""

    async def _nodes_come(self, pod: Pod) -> bool:
        if judge(pod)[0] != PodState.UNSCHEDULABLE:
            return False
        events = await self._cluster.events([pod.name], self._since)
        return any(reason in NODES_ARE_COMING for _, reason, _ in events)

    async def _failure(self, what: str, pods: Sequence[Pod], short: Sequence[Workload]) -> DeploymentRefused:
        names = [*(pod.name for pod in pods), *(name for each in short for name in (each.name, f"{each.name}-"))]
        lines = tell_pods(pods)
        if events := tell_events(await self._cluster.events(names, self._since), pods):
            lines += ["events:", *(f"  {line}" for line in events[-LAST_EVENTS:])]
        key = self._key_of(next(filter(None, map(missing_image, pods)), ""))
        wanted = ", ".join(f"{each.replicas} of {each.kind} {each.name}" for each in self._wanted)
        return DeploymentRefused(
            f"deployments.{self._deployment}.config.{key}: {what}.",
            seen="\n".join(lines),
            expected=f"ready pods in namespace '{self._cluster.namespace}': {wanted}",
            do=_advice(pods),
        )

    def _expected(self) -> int:
        return sum(each.replicas for each in self._wanted)


def _ready(pods: Sequence[Pod]) -> list[Pod]:
    return [pod for pod in pods if judge(pod)[0] == PodState.READY]


def _advice(pods: Sequence[Pod]) -> str:
    waiting = {each.waiting for pod in pods for each in (*pod.init_containers, *pod.containers)}
    if any(map(missing_image, pods)):
        return "correct the image in the deployment's values, or make it available to the cluster"
    if any(judge(pod)[0] == PodState.UNSCHEDULABLE for pod in pods):
        return "ask for less CPU, memory or GPUs in the deployment's values, or free nodes that have them"
    if "CrashLoopBackOff" in waiting:
        said = any(each.last_words for pod in pods for each in (*pod.init_containers, *pod.containers))
        return "do what its container says above" if said else "look at `kubectl logs` of the pod"
    return (
        "look at the events above, correct the deployment's values, and run again; `timeout` is the deadline in seconds"
    )
