"""A step's command in one pod or in several at once, and what its end means. One pod takes the same path as many."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from medweave_connectors.host.job_processes import end_line
from medweave_connectors.host.stdin_command import stdin_of
from medweave_connectors.jobs.node_group import LOSS_DEADLINE_S
from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import JobOutput, LineSplitter
from medweave_connectors.sites.pods.api.channels import STDOUT
from medweave_connectors.sites.pods.api.cluster import Cluster, Refused
from medweave_connectors.sites.pods.errors import PodLost
from medweave_connectors.sites.pods.exec import commands
from medweave_connectors.sites.pods.exec.commands import Counters
from medweave_connectors.sites.pods.exec.execution import Execution, execute
from medweave_connectors.sites.pods.startup.pod import Pod
from medweave_connectors.sites.pods.startup.states import kind_of_event, loss, loss_kind, node_lost
from medweave_core.contracts.progress import JSON_PREFIX

GRACE_S = 4.0  # between asking a command to end and killing it
OWN_WORDS_S = 20.0  # after the first node failed, the others may end by themselves and say why
WATCH_S, ASK_S = 2.0, 10.0  # between two looks; for a short command of ours
START_S, START_PAUSE_S = 5.0, 0.05  # a kubelet that was asked to start a command cannot be told not to
BACK_S, BACK_PAUSE_S = 20.0, 1.0
NODE_S = 90.0  # a cluster misses a node after 40 or 50 s, and may tell it some seconds later
HEARD_S, HEARD_PAUSE_S = 15.0, 0.5
LOST_CODE = 75  # "may succeed when run again"


@dataclass(slots=True, kw_only=True)
class Member:
    """One node of the group.

    Attributes:
        variables: its environment, as the step sees it.
        line: what its shell is told, ending in `exec`.
        exit_code: None until it has ended.
        lost: why its pod, or the way to it, is lost; empty if it is not.
        lost_kind: the same, in the words that all sites share; how a command ended whose connection broke, nobody knows.
        unheard: nobody has reached its pod again, and nobody knows why.
        ended: moment of its end, s on the monotonic clock.
        hears: gets each line of its standard error.
    """

    rank: int
    pod: Pod
    container: str
    variables: Mapping[str, str]
    line: str
    key: str
    output: JobOutput
    before: Counters = field(default_factory=Counters)
    after: Counters = field(default_factory=Counters)
    exit_code: int | None = None
    lost: str = ""
    lost_kind: FailureKind = FailureKind.UNKNOWN
    unheard: bool = False
    ended: float = 0.0
    asked_to_end: bool = False
    hears: Callable[[str], None] = lambda _line: None

    @property
    def place(self) -> str:
        """`pod:container`."""
        return f"{self.pod.name}:{self.container}"

    @property
    def failed(self) -> bool:
        """True where it did not do its work."""
        return bool(self.lost) or bool(self.exit_code)

    @property
    def failure(self) -> FailureKind:
        """The kind of its failure."""
        if self.lost or self.exit_code is None:
            return self.lost_kind
        return FailureKind.OUT_OF_MEMORY if commands.oom_kills(self.before, self.after) else FailureKind.STEP_FAILED

    def look_at(self, pod: Pod | None) -> bool:
        """Takes what its pod is now; True where it is lost."""
        if why := loss(self.pod, pod, self.container):
            self.lost, self.lost_kind = why, loss_kind(self.pod, pod, self.container)
        return bool(why)

    def hear_of(self, reason: str, text: str) -> None:
        """Takes an event of its lost pod."""
        if (kind := kind_of_event(reason)) is not None:
            self.lost, self.lost_kind = f"pod {self.pod.name}: {reason}: {text}", kind

    def take(self, line: str) -> None:
        """A line of its standard error."""
        self.hears(line)
        # Progress of node 0 alone is shown.
        if not self.before.take(line) and not (self.rank and line.startswith(JSON_PREFIX)):
            self.output.stderr(f"{line}\n".encode())


class Group:
    """The members' commands, from their start until all of them have ended."""

    def __init__(self, websocket: Any, cluster: Cluster, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._websocket, self._cluster = websocket, cluster
        self._executions: dict[int, Execution] = {}
        self._running: list[asyncio.Task[None]] = []
        self._since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)  # events have whole seconds
        self._timed_out = False
        self._broken: Exception | None = None  # of a task that watches the members
        self._doom, self._doom_kind = "", FailureKind.UNKNOWN

    async def run(
        self,
        time_limit_s: float | None,
        watched: Callable[[], Awaitable[tuple[str, FailureKind]]] | None = None,
        *,
        signal_after_s: float | None = None,
    ) -> bool:
        """Runs them all.

        When one fails, is lost, or `watched` reports a loss, the others have `OWN_WORDS_S` to end, and are ended then.

        Args:
            time_limit_s: all are ended after it.
            watched: says why something else that the members need is lost, and the kind of that loss; empty while it is not.
            signal_after_s: the command of node 0 gets USR1 then.

        Returns:
            False if the time limit was reached.
        """
        tasks = {asyncio.create_task(self._run(member), name=member.place): member for member in self.members}
        self._running = list(tasks)
        limit = None if time_limit_s is None else asyncio.create_task(self._guarded(self._end_after(time_limit_s)))
        signal = None if signal_after_s is None else asyncio.create_task(self._signal_after(signal_after_s))
        watcher = asyncio.create_task(self._guarded(self._watch(watched)))
        try:
            finished, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            while others:
                patience = OWN_WORDS_S if any(member.failed for member in self.members) else None
                if patience is None and any(tasks[task].rank == 0 for task in finished):
                    patience = LOSS_DEADLINE_S  # node 0 is done; a node that hangs now would hang for ever
                done, others = await asyncio.wait(others, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                finished |= done
                if not done:
                    await self._stop()
            for task in finished:
                task.result()  # an error of ours, not of a command, is told as such
            if self._broken is not None:
                raise self._broken
            first = self.members[0]
            if first.exit_code != 0 and self._doom and not first.lost:
                first.lost, first.lost_kind = self._doom, self._doom_kind
        except asyncio.CancelledError:
            await self.end("INT")
            raise
        except Exception:  # of ours: end the commands of the other members
            await self.end("TERM")
            raise
        finally:
            for task in filter(None, (watcher, signal, limit, *tasks)):
                task.cancel()
        return not self._timed_out

    @property
    def unheard(self) -> list[Member]:
        """Members whose pods nobody has reached again."""
        return [member for member in self.members if member.unheard]

    async def hear_of_nodes(self, closing: Callable[[], bool]) -> None:
        """Wait up to `NODE_S` for what the cluster reports of pods that were not reached again; less once `closing` is true."""

        def is_over(member: Member) -> bool:
            return closing() or time.monotonic() - member.ended > NODE_S

        await asyncio.gather(*(self._end_unheard(each, partial(is_over, each)) for each in self.unheard))

    async def end(self, signal: str) -> list[Member]:
        """End what still runs: the signal, then KILL, within about `GRACE_S` and a few seconds; return the members it reached."""
        running = [member for member in self.members if member.exit_code is None and not member.lost]
        for member in running:
            member.asked_to_end = True
        ended = await asyncio.gather(*(self._end(member, signal) for member in running))
        return [member for member, has_ended in zip(running, ended, strict=True) if has_ended]

    async def _stop(self) -> None:
        """End all members; a command that was killed is waited for, since its exit code may come seconds later."""
        reached = await self.end("TERM")
        await asyncio.wait(self._running, timeout=ASK_S)
        await self._give_up(reached)

    def culprit(self) -> Member:
        """Whose failure it was: a lost pod before one that complained of it, the earliest before the later."""
        failed = [member for member in self.members if member.failed] or self.members
        by_itself = [member for member in failed if not member.asked_to_end] or failed
        return min(by_itself, key=lambda member: (not member.lost, member.exit_code != 137, member.ended, member.rank))

    async def _run(self, member: Member) -> None:
        lines = LineSplitter(member.take)
        try:
            words = commands.start(member.line)
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
        except Exception as error:  # of ours: the others do not wait for it
            member.lost = member.lost or f"internal error of medweave: {type(error).__name__}"
            raise
        finally:
            lines.close()
            member.output.close()
            member.ended = time.monotonic()
        await self._look_back(member)

    async def _look_back(self, member: Member) -> None:
        """Ask the pod why: a container that was killed as a whole, an eviction, or a child that ran out of memory."""
        if member.exit_code == 0:
            member.after = await self._counters(member) or Counters()
            return
        is_lost = False
        with contextlib.suppress(Refused):
            is_lost = await self._is_lost(member)
        if member.exit_code is None:
            deadline = time.monotonic() + BACK_S
            await self._end_unheard(member, lambda: time.monotonic() > deadline, is_lost=is_lost)
        elif not member.lost:
            if counters := await self._counters(member):
                member.after = counters
            else:
                await self._hear_of_its_container(member)

    async def _is_lost(self, member: Member) -> bool:
        """Looks at a member's pod, and where that does not say why it has ended, at what the kubelet told of it.

        Raises:
            Refused: nobody answered.
        """
        if not member.look_at(await self._cluster.pod(member.pod.name)):
            return False
        if member.lost_kind is FailureKind.UNKNOWN:
            for event in await self._cluster.events([member.pod.name], self._since):
                member.hear_of(event.reason, event.text)
        return True

    async def _hear_of_its_container(self, member: Member) -> None:
        """The container went with the command, or before it: the kubelet tells why some seconds after it has killed it."""
        deadline = time.monotonic() + HEARD_S
        while time.monotonic() < deadline:
            await asyncio.sleep(HEARD_PAUSE_S)
            with contextlib.suppress(Refused):
                if await self._is_lost(member):
                    return

    async def _counters(self, member: Member) -> Counters | None:
        """The counters of its container; None where that does not run any more."""
        with contextlib.suppress(PodLost, TimeoutError):
            async with asyncio.timeout(ASK_S):
                execution = await execute(self._websocket, member.pod.namespace, member.place, commands.read_counters())
                text, _ = await execution.collect()
                return commands.parse_counters(text.decode(errors="replace").splitlines())
        return None

    async def _end_unheard(self, member: Member, is_over: Callable[[], bool], *, is_lost: bool = False) -> None:
        """Ends a command whose connection broke: it may go on where nobody listens.

        What broke the connection, an API server or a kubelet that is started again, takes some seconds to be back.

        Args:
            is_over: there is no more use in trying.
        """
        while not await self._end(member, "TERM") and not is_lost:
            member.unheard = is_over()
            if member.unheard:
                return
            await asyncio.sleep(BACK_PAUSE_S)
            with contextlib.suppress(Refused):
                is_lost = await self._is_lost(member)
        member.unheard = False

    async def _end(self, member: Member, signal: str) -> bool:
        """Whether it could be ended, or had ended."""
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
            return  # it did not get so far
        with contextlib.suppress(PodLost, TimeoutError):
            async with asyncio.timeout(ASK_S):
                words = commands.signal(first.before.command)
                execution = await execute(self._websocket, first.pod.namespace, first.place, words)
                await execution.collect()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that watches the members: where it dies, they end with its error, and none waits for ever."""
        try:
            await work
        except Exception as error:
            self._broken = error
            await self._give_up(())

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._timed_out = True
        await self._stop()

    async def _watch(self, watched: Callable[[], Awaitable[tuple[str, FailureKind]]] | None) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for member in self.members:
                if member.exit_code is None and not member.lost:
                    await self._look_at(member)
            told, kind = ("", FailureKind.UNKNOWN) if watched is None else await watched()
            if told:
                self._doom, self._doom_kind = told, kind
                await self._stop()
                return

    async def _look_at(self, member: Member) -> None:
        with contextlib.suppress(Refused):  # no answer: unknown, asked again
            if member.rank in self._executions and await self._is_lost(member):
                # Its stream may never end by itself: the kubelet that served it may be gone.
                await self._executions[member.rank].close()

    async def _give_up(self, reached: Sequence[Member]) -> None:
        """Wait no longer for members without an exit code.

        Args:
            reached: members whose commands were killed: they are over, for the known cause.
        """
        for member in self.members:
            if member.exit_code is None and not member.lost:
                is_over = bool(self._doom) and member in reached
                silent = f"pod {member.pod.name} does not answer"
                member.lost = self._doom if is_over else ". ".join(filter(None, (self._doom, silent)))
                member.lost_kind = self._doom_kind if is_over else FailureKind.UNKNOWN
        await asyncio.gather(*(execution.close() for execution in self._executions.values()))


def outcome_of(
    members: Sequence[Member],
    culprit: Member,
    *,
    seconds: float,
    limit_s: int | None,
    kept_at: str,
    reports: Path | None,
    site: Mapping[str, Any],
) -> CommandOutcome:
    """How a job ended, told by the member that decides it.

    Args:
        limit_s: the time limit if it was reached, s.
        kept_at: where its files lie, for people.
        reports: folder with copies of its reports, on this machine.
        site: facts about the pods, for the event log.
    """
    spent = [
        member.after.cpu_seconds - member.before.cpu_seconds
        for member in members
        if member.after.cpu_seconds is not None and member.before.cpu_seconds is not None
    ]
    code = LOST_CODE if culprit.lost or culprit.exit_code is None else culprit.exit_code
    if limit_s is not None:
        code = code or LOST_CODE
    word = culprit.lost or commands.verdict(code, culprit.before, culprit.after)
    if culprit.lost and culprit.failure is FailureKind.NODE_FAIL:
        word = node_lost(culprit.pod, culprit.lost)
    if len(members) > 1:
        word = f"node {culprit.rank} of {len(members)} ({culprit.place}) failed first. {word}".rstrip()
    if limit_s is not None:
        word = f"the time limit of {limit_s} s was reached; the step was ended."
    kind = FailureKind.TIMEOUT if limit_s is not None else culprit.failure
    return culprit.output.outcome(
        exit_code=code,
        seconds=seconds,
        cpu_seconds=sum(spent) if len(spent) == len(members) else None,
        site_word=word,
        kept_at=kept_at,
        report_folder=reports,
        site={**site, **({"failure": kind} if code else {})},
    )
