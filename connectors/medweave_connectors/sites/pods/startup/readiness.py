"""Waiting for pods, with deadlines: report the reason of a wait at once, and fail as soon as a pod cannot start."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence

from medweave_connectors.jobs.run_abort import run_is_ending
from medweave_connectors.runlog import console, current
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, EventCache, NamespaceClient
from medweave_connectors.sites.pods.objects.pod import ClusterEvent, Pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, describe, judge, missing_image
from medweave_connectors.sites.pods.objects.workloads import Workload
from medweave_connectors.sites.pods.startup.deadlines import (
    StartState,
    WaitEnd,
    WaitTimes,
    judge_missing_pods,
    judge_start,
)
from medweave_connectors.sites.pods.startup.messages import describe_events, describe_pods, describe_waiting
from medweave_connectors.sites.pods.startup.settling import RecentStarts

POLL_S = 0.5
GONE_S = 2.0  # between two checks for deleted workloads; less than `NEVER_S`, so that a single check ends nothing
MAKING_S = 1.0  # after this time, events explain why a workload has no pods
SAY_AFTER_S = 10.0
LAST_EVENTS = 6


class RunIsEnding(Exception):
    """The wait is not needed any more: a signal came, or a step elsewhere failed."""


class Readiness:
    """Wait for all pods of a deployment.

    Args:
        timeout_s: longest time to start when nothing blocks the pods, s.
        pending_timeout_s: longest time to wait for resources that may become available, s.
        key_of: maps the missing image (empty for none) to the key of the deployment's config to correct.
    """

    def __init__(
        self,
        deployment: str,
        cluster: NamespaceClient,
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
        self._clock = self._reported_s = time.monotonic()
        self._watch, self._events = EventCache(cluster), list[ClusterEvent]()
        self._gone, self._looked = list[Workload](), self._clock
        self._reported, self._recent_starts = "", RecentStarts()

    async def wait(self) -> list[Pod]:
        """Wait until all workloads have their number of ready pods, and return the pods.

        Raises:
            DeploymentRefused: a pod cannot start, or a deadline passed; the message has each pod's state and events.
            RunIsEnding: the pods are not needed any more.
        """
        waited = WaitTimes()
        while True:
            if run_is_ending():
                raise RunIsEnding
            groups = await self._groups()
            short = [workload for workload, pods in groups if len(_ready(pods)) < workload.replicas]
            pods = [pod for _, group in groups for pod in group]
            if not short:
                return _ready(pods)
            await self._ask_for_events(pods)
            await self._look_for_gone(groups)
            states = self._start_states(groups)
            waited = waited.after(time.monotonic(), states, self._events)
            end = waited.end(timeout_s=self._timeout_s, pending_timeout_s=self._pending_timeout_s)
            if end is not None:
                raise await self._failure(end, waited, pods)
            self._report(pods, states)
            await asyncio.sleep(POLL_S)

    async def _groups(self) -> list[tuple[Workload, list[Pod]]]:
        answers = await asyncio.gather(
            *(self._cluster.pods(workload.selector) for workload in self._wanted), return_exceptions=True
        )  # a failed request is repeated at the next check; the deadline still applies
        groups = []
        for workload, pods in zip(self._wanted, answers, strict=True):
            if isinstance(pods, BaseException) and not isinstance(pods, ApiServerError):
                raise pods
            groups.append((workload, [] if isinstance(pods, BaseException) else pods))
        now = time.monotonic()
        self._recent_starts = self._recent_starts.after(now, [pod for _, pods in groups for pod in pods])
        return [(workload, [self._recent_starts.settled(now, pod) for pod in pods]) for workload, pods in groups]

    async def _ask_for_events(self, pods: Sequence[Pod], *, at_once: bool = False) -> None:
        workloads = [name for workload in self._wanted for name in (workload.name, f"{workload.name}-")]
        names = {*workloads, *(pod.name for pod in pods), *(claim for pod in pods for claim in pod.claims)}
        self._events = await self._watch.about(sorted(names), self._since, at_once=at_once)

    async def _look_for_gone(self, groups: Sequence[tuple[Workload, list[Pod]]]) -> None:
        """Look for deleted workloads among those without pods; an account without that right fails at the deadline instead."""
        if time.monotonic() - self._looked < GONE_S:
            return
        self._looked, self._gone = time.monotonic(), []
        for workload, pods in groups:
            if sum(judge(pod)[0] != PodState.GONE for pod in pods) < workload.replicas:
                try:
                    await self._cluster.request("GET", workload.path(self._cluster.namespace))
                except ApiServerError as error:
                    if error.status == 404:
                        self._gone.append(workload)

    def _start_states(self, groups: Sequence[tuple[Workload, list[Pod]]]) -> dict[str, tuple[StartState, str]]:
        states = {pod.name: judge_start(pod, self._events) for _, pods in groups for pod in pods}
        for workload, pods in groups:
            if len(pods) < workload.replicas and time.monotonic() - self._clock > MAKING_S:
                states[workload.name] = judge_missing_pods(workload.name, self._events)
        states.update(
            {workload.name: (StartState.NEVER, f"{workload.kind} {workload.name} is gone") for workload in self._gone}
        )
        return states

    def _report(self, pods: Sequence[Pod], states: dict[str, tuple[StartState, str]]) -> None:
        """Report what the pods wait for at every change, and from time to time their states if nothing blocks them."""
        ready = f"{len(_ready(pods))} of {self._expected()} pods ready"
        reasons = describe_waiting(states)
        now = time.monotonic()
        if reasons and reasons != self._reported:
            self._reported, self._reported_s = reasons, now
            text = f"{ready}; waits for up to {self._pending_timeout_s:.0f} s: {reasons}"
            if (run := current()) is not None:
                run.deployment_notice(self._deployment, text)
            else:
                console.say(f"medweave: {self._deployment}: {text}")
        elif not reasons and now - self._reported_s > SAY_AFTER_S:
            self._reported_s = now
            starting = "; ".join(describe(pod) for pod in pods if judge(pod)[0] != PodState.READY) or "no pods yet"
            console.say(f"medweave: {self._deployment}: {ready}; {starting}")

    async def _failure(self, end: WaitEnd, waited: WaitTimes, pods: Sequence[Pod]) -> DeploymentRefused:
        await self._ask_for_events(pods, at_once=True)
        lines = [f"{workload.kind} {workload.name} is gone" for workload in self._gone] + describe_pods(pods)
        if events := describe_events(self._events, pods):
            lines += ["events:", *(f"  {line}" for line in events[-LAST_EVENTS:])]
        key = self._key_of(next(filter(None, map(missing_image, pods)), ""))
        after = " after the last scale-up" if waited.scale_ups else ""
        gone = ", ".join(f"{workload.kind} {workload.name}" for workload in self._gone)
        never = "its pods cannot start" if pods else "the cluster refuses to create its pods"
        what = {
            WaitEnd.NEVER: f"{key}: {f'{gone} was deleted while medweave waited for its pods' if gone else never}.",
            WaitEnd.WAITED: f"pendingTimeout: its pods could not start within {self._pending_timeout_s:.0f} s{after}.",
            WaitEnd.LATE: f"timeout: its pods were not ready after {self._timeout_s:.0f} s.",
        }[end]
        wanted = ", ".join(f"{workload.replicas} of {workload.kind} {workload.name}" for workload in self._wanted)
        return DeploymentRefused(
            f"deployments.{self._deployment}.config.{what}",
            seen="\n".join(lines),
            expected=f"ready pods in namespace '{self._cluster.namespace}': {wanted}",
            do="find out what deleted it, and run again" if gone else _advice(end, pods),
        )

    def _expected(self) -> int:
        return sum(workload.replicas for workload in self._wanted)


def _ready(pods: Sequence[Pod]) -> list[Pod]:
    return [pod for pod in pods if judge(pod)[0] == PodState.READY]


def _advice(end: WaitEnd, pods: Sequence[Pod]) -> str:
    waiting = {container.waiting for pod in pods for container in (*pod.init_containers, *pod.containers)}
    if any(map(missing_image, pods)):
        return "correct the image in the deployment's values, or make it available to the cluster"
    if any(judge(pod)[0] == PodState.UNSCHEDULABLE for pod in pods):
        return (
            "request less CPU, memory, GPUs or storage in the deployment's values, or free nodes that have them; if an autoscaler "
            "adds nodes, increase `pendingTimeout`"
        )
    if "CrashLoopBackOff" in waiting:
        has_message = any(
            container.termination_message for pod in pods for container in (*pod.init_containers, *pod.containers)
        )
        return "follow the message of the container above" if has_message else "check `kubectl logs` of the pod"
    longer = f"; `{end}` is the deadline in seconds" if end is not WaitEnd.NEVER else ""
    return f"check the events above, correct the deployment's values, and run again{longer}"
