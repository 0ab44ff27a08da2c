"""A step's command in a group of pods, from start to end. A single pod is a group of one."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from medweave_connectors.host.job_processes import end_line
from medweave_connectors.host.stdin_command import stdin_of
from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.jobs.supervised_group import SupervisedGroup
from medweave_connectors.runlog.job_output import LineSplitter
from medweave_connectors.sites.pods.api.channels import STDOUT
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, NamespaceClient
from medweave_connectors.sites.pods.exec import commands
from medweave_connectors.sites.pods.exec.commands import Counters
from medweave_connectors.sites.pods.exec.execution import Execution, execute
from medweave_connectors.sites.pods.exec.member import Member

GRACE_S = 4.0  # between TERM and KILL
WATCH_S, ASK_S = 2.0, 10.0  # between two checks; time limit of a short command
START_S, START_PAUSE_S = 5.0, 0.05  # a kubelet cannot cancel the start of a command
BACK_S, BACK_PAUSE_S = 20.0, 1.0
NODE_S = 90.0  # a cluster notices a lost node after 40 or 50 s, and may report it some seconds later
STATUS_S, STATUS_PAUSE_S = 15.0, 0.5


class PodGroup(SupervisedGroup[Member]):
    """The members' commands in their containers."""

    def __init__(self, websocket: Any, cluster: NamespaceClient, members: Sequence[Member]) -> None:
        super().__init__(members)
        self._websocket, self._cluster = websocket, cluster
        self._executions: dict[int, Execution] = {}
        self._since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)  # events have whole seconds
        self._loss, self._loss_kind = "", FailureKind.UNKNOWN

    async def run(
        self,
        time_limit_s: float | None,
        watched: Callable[[], Awaitable[tuple[str, FailureKind]]] | None = None,
        *,
        signal_after_s: float | None = None,
    ) -> bool:
        """Run all members, as `supervise`; they are ended too when `watched` reports a loss.

        Args:
            time_limit_s: all members are ended after it.
            watched: returns why another dependency of the members is lost, and the kind of that loss; empty if none is.
            signal_after_s: the command of node 0 gets USR1 after it.

        Returns:
            False if the time limit was reached.
        """
        signal = [] if signal_after_s is None else [self._signal_after(signal_after_s)]
        in_time = await self.supervise(time_limit_s, [self._watch(watched), *signal])
        first = self.members[0]
        if first.exit_code != 0 and self._loss and not first.lost:
            first.lost, first.lost_kind = self._loss, self._loss_kind
        return in_time

    @property
    def unreachable(self) -> list[Member]:
        """Return the members whose pods could not be reached again."""
        return [member for member in self.members if member.unreachable]

    async def wait_for_node_status(self, closing: Callable[[], bool]) -> None:
        """Wait up to `NODE_S` for what the cluster reports of pods that were not reached again; less once `closing` is true."""

        def is_over(member: Member) -> bool:
            return closing() or time.monotonic() - member.ended > NODE_S

        await asyncio.gather(*(self._end_unreachable(member, partial(is_over, member)) for member in self.unreachable))

    async def _run(self, member: Member) -> None:
        lines = LineSplitter(member.take)
        try:
            words = commands.build_start_command(member.line)
            script, place = stdin_of(words), member.place
            execution = await execute(self._websocket, member.pod.namespace, place, words, takes_input=bool(script))
            self._executions[member.rank] = execution
            if script:
                await execution.write(script)
                await execution.close_input()
            async for channel, data in execution.output():
                if channel == STDOUT:
                    member.output.stdout(data)
                else:
                    lines.feed(data)
            if execution.exit_code is None and execution.message:
                member.lost = member.lost or execution.message
            else:
                member.exit_code = execution.ended()
        except PodLost as error:
            member.lost = member.lost or str(error)
        except Exception as error:  # internal error: the others do not wait for this member
            member.lost = member.lost or f"internal error of medweave: {type(error).__name__}"
            raise
        finally:
            lines.close()
            member.output.close()
            member.ended = time.monotonic()
        await self._find_reason(member)

    async def _find_reason(self, member: Member) -> None:
        """Find the reason for a failure: a killed container, an eviction, or a child process that ran out of memory."""
        if member.exit_code == 0:
            member.after = await self._counters(member) or Counters()
            return
        is_lost = False
        with contextlib.suppress(ApiServerError):
            is_lost = await self._is_lost(member)
        if member.exit_code is None:
            deadline = time.monotonic() + BACK_S
            await self._end_unreachable(member, lambda: time.monotonic() > deadline, is_lost=is_lost)
        elif not member.lost:
            if counters := await self._counters(member):
                member.after = counters
            else:
                await self._wait_for_container_status(member)

    async def _is_lost(self, member: Member) -> bool:
        """Check a member's pod, and its events if the pod has no reason for its end. Return True if the pod is lost.

        Raises:
            ApiServerError: the API server did not answer.
        """
        if not member.look_at(await self._cluster.pod(member.pod.name)):
            return False
        if member.lost_kind is FailureKind.UNKNOWN:
            for event in await self._cluster.events([member.pod.name], self._since):
                member.record_event(event.reason, event.text)
        return True

    async def _wait_for_container_status(self, member: Member) -> None:
        """Wait for the reason why the container ended: the kubelet reports it some seconds after it killed the container."""
        deadline = time.monotonic() + STATUS_S
        while time.monotonic() < deadline:
            await asyncio.sleep(STATUS_PAUSE_S)
            with contextlib.suppress(ApiServerError):
                if await self._is_lost(member):
                    return

    async def _counters(self, member: Member) -> Counters | None:
        """Return the counters of its container; None if it does not run any more."""
        with contextlib.suppress(PodLost, TimeoutError):
            async with asyncio.timeout(ASK_S):
                execution = await execute(
                    self._websocket, member.pod.namespace, member.place, commands.build_counters_command()
                )
                text, _ = await execution.collect()
                return commands.parse_counters(text.decode(errors="replace").splitlines())
        return None

    async def _end_unreachable(self, member: Member, is_over: Callable[[], bool], *, is_lost: bool = False) -> None:
        """End a command whose connection broke, since it may still be running.

        A restarting API server or kubelet, which broke the connection, needs some seconds to be back.

        Args:
            is_over: true once further attempts are pointless.
        """
        while not await self._end(member, "TERM") and not is_lost:
            member.unreachable = is_over()
            if member.unreachable:
                return
            await asyncio.sleep(BACK_PAUSE_S)
            with contextlib.suppress(ApiServerError):
                is_lost = await self._is_lost(member)
        member.unreachable = False

    async def _end(self, member: Member, signal: str) -> bool:
        """Signal a member's command, and KILL it after `GRACE_S`; return True if it could be ended or had ended."""
        deadline = time.monotonic() + START_S
        while member.before.group is None and not member.ended and time.monotonic() < deadline:
            await asyncio.sleep(START_PAUSE_S)
        words = ["sh", "-c", end_line(member.before.group, member.key, signal=signal, grace_s=GRACE_S)]
        with contextlib.suppress(PodLost, TimeoutError):
            async with asyncio.timeout(GRACE_S + ASK_S):
                execution = await execute(self._websocket, member.pod.namespace, member.place, words)
                await execution.collect()
                return True
        return False

    async def _signal_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        first = self.members[0]
        if first.before.command is None:
            return  # not started yet
        with contextlib.suppress(PodLost, TimeoutError):
            async with asyncio.timeout(ASK_S):
                words = commands.build_signal_command(first.before.command)
                execution = await execute(self._websocket, first.pod.namespace, first.place, words)
                await execution.collect()

    async def _watch(self, watched: Callable[[], Awaitable[tuple[str, FailureKind]]] | None) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for member in self.members:
                if member.exit_code is None and not member.lost:
                    await self._look_at(member)
            reason, kind = ("", FailureKind.UNKNOWN) if watched is None else await watched()
            if reason:
                self._loss, self._loss_kind = reason, kind
                await self._stop()
                return

    async def _look_at(self, member: Member) -> None:
        with contextlib.suppress(ApiServerError):  # no answer: unknown until the next check
            if member.rank in self._executions and await self._is_lost(member):
                # Its stream may never end, since its kubelet may be gone.
                await self._executions[member.rank].close()

    async def _give_up(self, reached: Sequence[Member]) -> None:
        """Wait no longer for members without an exit code; those that were killed are over, for the known cause."""
        for member in self.members:
            if member.exit_code is None and not member.lost:
                is_over = bool(self._loss) and member in reached
                silent = f"pod {member.pod.name} does not answer"
                member.lost = self._loss if is_over else ". ".join(filter(None, (self._loss, silent)))
                member.lost_kind = self._loss_kind if is_over else FailureKind.UNKNOWN
        await asyncio.gather(*(execution.close() for execution in self._executions.values()))
