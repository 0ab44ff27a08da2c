"""Waiting for pods, with deadlines: what they wait for is told at once, and an error as soon as the wait is hopeless."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence

from medweave_connectors.jobs.run_abort import run_is_ending
from medweave_connectors.runlog import console, current
from medweave_connectors.sites.pods.api.cluster import Cluster, Refused
from medweave_connectors.sites.pods.api.events import Events
from medweave_connectors.sites.pods.errors import DeploymentRefused
from medweave_connectors.sites.pods.startup.deadlines import End, Hope, Waited, hope, hope_of_missing
from medweave_connectors.sites.pods.startup.messages import tell_events, tell_pods, tell_waiting
from medweave_connectors.sites.pods.startup.pod import Event, Pod
from medweave_connectors.sites.pods.startup.settling import Doubts
from medweave_connectors.sites.pods.startup.states import PodState, describe, judge, missing_image
from medweave_connectors.sites.pods.startup.workloads import Workload

POLL_S = 0.5
GONE_S = 2.0  # between two looks for workloads that are short of pods; less than `NEVER_S`, so that one look alone ends nothing
MAKING_S = 1.0  # a workload without its pods is asked for the reason after so long
SAY_AFTER_S = 10.0
LAST_EVENTS = 6


class RunIsEnding(Exception):
    """There is no more need to wait: a signal came, or a step elsewhere has failed."""


class Readiness:
    """One wait for all pods of a deployment.

    Args:
        timeout_s: longest time to start when nothing is in the way, s.
        pending_timeout_s: longest time to wait for what may come by itself, s.
        key_of: the key of the deployment's config that describes the pods, given the image that they lack (empty: they lack none).
    """

    def __init__(
        self,
        deployment: str,
        cluster: Cluster,
        wanted: Sequence[Workload],
        *,
        timeout_s: float,
        pending_timeout_s: float,
        key_of: Callable[[str], str],
    ) -> None:
        self._deployment, self._cluster, self._wanted = deployment, cluster, wanted
        self._timeout_s, self._pending_timeout_s = timeout_s, pending_timeout_s
        self._key_of = key_of
        self._since = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self._clock = self._said = time.monotonic()
        self._watch, self._events = Events(cluster), list[Event]()
        self._gone, self._looked = list[Workload](), self._clock
        self._told, self._doubts = "", Doubts()

    async def wait(self) -> list[Pod]:
        """Waits until each workload has its number of ready pods; returns them.

        Raises:
            DeploymentRefused: a pod cannot start, or a deadline passed; the message has each pod's state and events.
            RunIsEnding: nobody needs the pods any more.
        """
        waited = Waited()
        while True:
            if run_is_ending():
                raise RunIsEnding
            groups = await self._groups()
            short = [each for each, pods in groups if len(_ready(pods)) < each.replicas]
            pods = [pod for _, found in groups for pod in found]
            if not short:
                return _ready(pods)
            await self._ask_for_events(pods)
            await self._look_for_gone(groups)
            hopes = self._hopes(groups)
            waited = waited.after(time.monotonic(), hopes, self._events)
            end = waited.end(timeout_s=self._timeout_s, pending_timeout_s=self._pending_timeout_s)
            if end is not None:
                raise await self._failure(end, waited, pods)
            self._tell(pods, hopes)
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
        now = time.monotonic()
        self._doubts = self._doubts.after(now, [pod for _, pods in groups for pod in pods])
        return [(workload, [self._doubts.doubted(now, pod) for pod in pods]) for workload, pods in groups]

    async def _ask_for_events(self, pods: Sequence[Pod], *, at_once: bool = False) -> None:
        workloads = [name for each in self._wanted for name in (each.name, f"{each.name}-")]
        names = {*workloads, *(pod.name for pod in pods), *(claim for pod in pods for claim in pod.claims)}
        self._events = await self._watch.about(sorted(names), self._since, at_once=at_once)

    async def _look_for_gone(self, groups: Sequence[tuple[Workload, list[Pod]]]) -> None:
        """A workload without its pods may have been deleted; an account that may not ask for it hears of that at the deadline."""
        if time.monotonic() - self._looked < GONE_S:
            return
        self._looked, self._gone = time.monotonic(), []
        for workload, pods in groups:
            if sum(judge(pod)[0] != PodState.GONE for pod in pods) < workload.replicas:
                try:
                    await self._cluster.request("GET", workload.path(self._cluster.namespace))
                except Refused as error:
                    if error.status == 404:
                        self._gone.append(workload)

    def _hopes(self, groups: Sequence[tuple[Workload, list[Pod]]]) -> dict[str, tuple[Hope, str]]:
        hopes = {pod.name: hope(pod, self._events) for _, pods in groups for pod in pods}
        for workload, pods in groups:
            if len(pods) < workload.replicas and time.monotonic() - self._clock > MAKING_S:
                hopes[workload.name] = hope_of_missing(workload.name, self._events)
        hopes.update({each.name: (Hope.NEVER, f"{each.kind} {each.name} is gone") for each in self._gone})
        return hopes

    def _tell(self, pods: Sequence[Pod], hopes: dict[str, tuple[Hope, str]]) -> None:
        """What the pods wait for at each change, and now and then what they do when nothing is in their way."""
        ready = f"{len(_ready(pods))} of {self._expected()} pods ready"
        reasons = tell_waiting(hopes)
        now = time.monotonic()
        if reasons and reasons != self._told:
            self._told, self._said = reasons, now
            text = f"{ready}; waits for up to {self._pending_timeout_s:.0f} s: {reasons}"
            if (run := current()) is not None:
                run.deployment_notice(self._deployment, text)
            else:
                console.say(f"medweave: {self._deployment}: {text}")
        elif not reasons and now - self._said > SAY_AFTER_S:
            self._said = now
            starting = "; ".join(describe(pod) for pod in pods if judge(pod)[0] != PodState.READY) or "no pods yet"
            console.say(f"medweave: {self._deployment}: {ready}; {starting}")

    async def _failure(self, end: End, waited: Waited, pods: Sequence[Pod]) -> DeploymentRefused:
        await self._ask_for_events(pods, at_once=True)
        lines = [f"{each.kind} {each.name} is gone" for each in self._gone] + tell_pods(pods)
        if events := tell_events(self._events, pods):
            lines += ["events:", *(f"  {line}" for line in events[-LAST_EVENTS:])]
        key = self._key_of(next(filter(None, map(missing_image, pods)), ""))
        after = " after the last scale-up" if waited.scale_ups else ""
        gone = ", ".join(f"{each.kind} {each.name}" for each in self._gone)
        never = "its pods cannot start" if pods else "the cluster refuses to make its pods"
        what = {
            End.NEVER: f"{key}: {f'somebody has deleted {gone}, whose pods were waited for' if gone else never}.",
            End.WAITED: f"pendingTimeout: its pods could not start within {self._pending_timeout_s:.0f} s{after}.",
            End.LATE: f"timeout: its pods were not ready after {self._timeout_s:.0f} s.",
        }[end]
        wanted = ", ".join(f"{each.replicas} of {each.kind} {each.name}" for each in self._wanted)
        return DeploymentRefused(
            f"deployments.{self._deployment}.config.{what}",
            seen="\n".join(lines),
            expected=f"ready pods in namespace '{self._cluster.namespace}': {wanted}",
            do="find out who has deleted it, and run again" if gone else _advice(end, pods),
        )

    def _expected(self) -> int:
        return sum(each.replicas for each in self._wanted)


def _ready(pods: Sequence[Pod]) -> list[Pod]:
    return [pod for pod in pods if judge(pod)[0] == PodState.READY]


def _advice(end: End, pods: Sequence[Pod]) -> str:
    waiting = {each.waiting for pod in pods for each in (*pod.init_containers, *pod.containers)}
    if any(map(missing_image, pods)):
        return "correct the image in the deployment's values, or make it available to the cluster"
    if any(judge(pod)[0] == PodState.UNSCHEDULABLE for pod in pods):
        return (
            "ask for less CPU, memory, GPUs or storage in the deployment's values, or free nodes that have them; where nodes are "
            "made when pods ask for them, give them more time (`pendingTimeout`)"
        )
    if "CrashLoopBackOff" in waiting:
        said = any(each.last_words for pod in pods for each in (*pod.init_containers, *pod.containers))
        return "do what its container says above" if said else "look at `kubectl logs` of the pod"
    longer = f"; `{end}` is the deadline in seconds" if end is not End.NEVER else ""
    return f"look at the events above, correct the deployment's values, and run again{longer}"
