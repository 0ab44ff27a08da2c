"""Supervision of a node group: the same command at each of its locations, watched until all have ended.

A job at a single location is a group of one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from medweave_connectors.jobs.node_group import LOSS_DEADLINE_S
from medweave_connectors.runlog.job_output import JobOutput
from medweave_core.contracts.progress import JSON_PREFIX

OWN_END_S = 20.0  # after the first node failed, the others have this time to end and to report their reason
STOP_S = 10.0  # a command that was killed is waited for: its exit code may come seconds later
LOST_CODE = 75  # "may succeed when run again"
KILLED_CODE = 137


@dataclass(slots=True, kw_only=True)
class GroupMember(ABC):
    """One node of the group.

    Attributes:
        rank: 0 … number of nodes - 1.
        key: value of `host.job_processes.KEY` in the environment of its processes.
        exit_code: None until it has ended.
        lost: why its location, or the connection to it, is lost; empty if it is not.
        ended: moment of its end, s on the monotonic clock.
        end_requested: this run has signaled it.
    """

    rank: int
    key: str
    output: JobOutput
    exit_code: int | None = None
    lost: str = ""
    ended: float = 0.0
    end_requested: bool = False

    @property
    @abstractmethod
    def place(self) -> str:
        """Return the name of its location."""

    @property
    def failed(self) -> bool:
        """Return whether it failed or was lost."""
        return bool(self.lost) or bool(self.exit_code)

    @property
    def code(self) -> int:
        """Return its exit code; `LOST_CODE` if it was lost."""
        return LOST_CODE if self.lost or self.exit_code is None else self.exit_code

    def take(self, line: str) -> None:
        """Process a line of its standard error. Progress of node 0 alone is shown."""
        if not (self.rank and line.startswith(JSON_PREFIX)):
            self.output.stderr(f"{line}\n".encode())


Member = TypeVar("Member", bound=GroupMember)


class SupervisedGroup(ABC, Generic[Member]):
    """The members' commands, from their start until all of them have ended."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._running: list[asyncio.Task[None]] = []
        self._timed_out = False
        self._broken: Exception | None = None  # of a task that watches the members

    @abstractmethod
    async def _run(self, member: Member) -> None:
        """Run a member's command, and store its exit code, or why it is lost, and the time of its end."""

    @abstractmethod
    async def _end(self, member: Member, signal: str) -> bool:
        """Signal a member's command, then KILL it; return True if it could be ended or had ended."""

    @abstractmethod
    async def _give_up(self, reached: Sequence[Member]) -> None:
        """Wait no longer for members without an exit code: store that they are lost, and let their `_run` return.

        Args:
            reached: members whose commands were killed.
        """

    async def supervise(self, time_limit_s: float | None, watchers: Iterable[Coroutine[Any, Any, None]] = ()) -> bool:
        """Run all members. When one fails or is lost, the others have `OWN_END_S` to end, and are ended then.

        Args:
            time_limit_s: all members are ended after it.
            watchers: work while they run; its errors end the members.

        Returns:
            False if the time limit was reached.
        """
        tasks = {asyncio.create_task(self._run(member), name=member.place): member for member in self.members}
        self._running = list(tasks)
        limit = [] if time_limit_s is None else [self._end_after(time_limit_s)]
        watching = [asyncio.create_task(self._guarded(work)) for work in (*watchers, *limit)]
        try:
            finished, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            while others:
                timeout_s = OWN_END_S if any(member.failed for member in self.members) else None
                if timeout_s is None and any(tasks[task].rank == 0 for task in finished):
                    timeout_s = LOSS_DEADLINE_S  # node 0 has ended, so a node that hangs now would hang for ever
                done, others = await asyncio.wait(others, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                finished |= done
                if not done:
                    await self._stop()
            for task in finished:
                task.result()  # raises an internal error, which is no failure of a command
            if self._broken is not None:
                raise self._broken
        except asyncio.CancelledError:
            await self.end("INT")
            raise
        except Exception:  # internal error: end the commands of the other members
            await self.end("TERM")
            raise
        finally:
            for task in (*watching, *tasks):
                task.cancel()
        return not self._timed_out

    async def end(self, signal: str) -> list[Member]:
        """Signal the running members, then KILL them; return the members reached."""
        running = [member for member in self.members if member.exit_code is None and not member.lost]
        for member in running:
            member.end_requested = True
        ended = await asyncio.gather(*(self._end(member, signal) for member in running))
        return [member for member, has_ended in zip(running, ended, strict=True) if has_ended]

    def culprit(self) -> Member:
        """Return the member that caused the failure: a lost one before others, the earliest before later ones."""
        failed = [member for member in self.members if member.failed] or self.members
        unprompted = [member for member in failed if not member.end_requested] or failed
        return min(
            unprompted, key=lambda member: (not member.lost, member.exit_code != KILLED_CODE, member.ended, member.rank)
        )

    async def _stop(self) -> None:
        """End all members."""
        reached = await self.end("TERM")
        await asyncio.wait(self._running, timeout=STOP_S)
        await self._give_up(reached)

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._timed_out = True
        await self._stop()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that watches the members; if it fails, end them with its error instead of waiting for ever."""
        try:
            await work
        except Exception as error:
            self._broken = error
            await self._give_up(())


def describe_failure(members: Sequence[GroupMember], culprit: GroupMember, word: str, *, limit_s: int | None) -> str:
    """Return the site's message about a failed job: its time limit, or the node that failed first.

    Args:
        word: the site's message about the culprit; may be empty.
        limit_s: the time limit if it was reached, s.
    """
    if limit_s is not None:
        return f"the time limit of {limit_s} s was reached; the step was ended."
    if len(members) > 1:
        return f"node {culprit.rank} of {len(members)} ({culprit.place}) failed first. {word}".rstrip()
    return word
