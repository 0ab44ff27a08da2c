"""Deadlines and retries of all sites: for work that makes no progress, and for a service that does not answer.

The time of a copy or a hash grows with its data, so it has no limit. Work without progress is canceled, and the error names the
place and the bytes so far. A query that a service does not answer changes nothing: the state stays unknown, and the query is
repeated. Does not import streamflow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from medweave_core.errors import StorageError

NO_PROGRESS_S = 600.0  # an archive on tape, or a file server that restarts, may take some minutes
# Before each further attempt after a lost connection: a kubelet or an API server that restarts needs some seconds.
RETRY_PAUSES_S = (0.5, 1.0, 3.0, 8.0, 15.0)
UNRESPONSIVE_S = 60.0  # a connection over which nothing comes, not even an answer to a ping
_CANCEL_S = 30.0  # programs are ended and remove their files
# Of a scheduler or API server that does not answer.
NOTICE_AFTER_S, GIVE_UP_AFTER_S = 60.0, 1800.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0
Value = TypeVar("Value")


class NoProgress(Exception):
    """Work was cancelled because it made no progress.

    Attributes:
        what, where: the work and its place, for people; no names of files.
        num_bytes: how many had passed.
        silent_s: time without progress, s.
    """

    def __init__(self, what: str, where: str, num_bytes: int, silent_s: float) -> None:
        super().__init__(f"{where}: {what} made no progress for {silent_s:.0f} s, after {num_bytes:,} bytes")
        self.what, self.where, self.num_bytes, self.silent_s = what, where, num_bytes, silent_s


class ProgressDeadline:
    """Cancels work that has made no progress for a while.

    Args:
        what, where: the work and its place, for people; no names of files.
        silence_s: longest time without progress, s; None for `NO_PROGRESS_S`.
    """

    def __init__(
        self, what: str, where: str, silence_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._where, self._clock = what, where, clock
        self._silence_s = NO_PROGRESS_S if silence_s is None else silence_s
        self._last = clock()
        self._num_bytes = 0

    def progressed(self, num_bytes: int = 0) -> None:
        """Count so many more bytes, or another sign that the work goes forward."""
        self._num_bytes += num_bytes
        self._last = self._clock()

    async def guard(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Return what the work returns.

        Raises:
            NoProgress: the work stopped; it was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            while (left_s := self._last + self._silence_s - self._clock()) > 0:
                if (await asyncio.wait({task}, timeout=left_s))[0]:
                    return task.result()
            raise NoProgress(self._what, self._where, self._num_bytes, self._clock() - self._last)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_S)
            if task.done() and not task.cancelled():
                task.exception()  # retrieved, so that asyncio logs nothing


class SiteUnresponsive(Exception):
    """A service has not answered for half an hour; the argument is the last message."""


class ResponseDeadline:
    """Time since a service last answered. A failed query changes nothing but that time.

    Attributes:
        last_message: the last error since the last answer; may be empty.
    """

    def __init__(
        self,
        service: str,
        notice: Callable[[str], None],
        *,
        consequence: str = "the job stays submitted",
        at_once: bool = False,
        longest_pause_s: float | None = None,
    ) -> None:
        """Start the clock; the first answer resets it.

        Args:
            service: its name, for people, as in `Slurm`.
            notice: called with a sentence for the user when the service has not answered for long, and when it answers again.
            consequence: what the missing answer means for the job or run, in that sentence.
            at_once: notify at the first failed query, because the user waits for this answer.
            longest_pause_s: between two queries, s; None for `LONGEST_PAUSE_S`, which spares a login node.
        """
        self._service, self._notice = service, notice
        self._notified, self.last_message = False, ""
        self._consequence, self._at_once = consequence, at_once
        self._longest_pause_s = LONGEST_PAUSE_S if longest_pause_s is None else longest_pause_s
        self._answered = time.monotonic()

    def answered(self) -> None:
        """Reset the clock after an answer."""
        if self._notified:
            self._notice(f"{self._service} answers again")
        self._answered, self._notified, self.last_message = time.monotonic(), False, ""

    def no_answer(self, last_message: str) -> None:
        """Record a query without an answer.

        Raises:
            SiteUnresponsive: no answer for half an hour.
        """
        self.last_message = last_message or self.last_message
        silence_s = time.monotonic() - self._answered
        if silence_s > GIVE_UP_AFTER_S:
            raise SiteUnresponsive(self.last_message)
        if (self._at_once or silence_s > NOTICE_AFTER_S) and not self._notified:
            self._notified = True
            self._notice(f"{self._service} does not answer; {self._consequence} ({self.last_message or 'no message'})")

    @property
    def pause_s(self) -> float:
        """Return the time to the next query: a tenth of the time without an answer."""
        return min(max((time.monotonic() - self._answered) / 10, SHORTEST_PAUSE_S), self._longest_pause_s)


async def retry_until_answered(
    query: Callable[[], Awaitable[Value]],
    deadline: ResponseDeadline,
    *,
    failures: tuple[type[Exception], ...] = (Exception,),
) -> Value:
    """Return the answer to a query, which is repeated as long as it fails.

    Args:
        failures: exceptions that count as no answer; any other is raised.

    Raises:
        SiteUnresponsive: the query has failed for half an hour.
        StorageError: this machine's disk is full.
    """
    while True:
        try:
            answer = await query()
        except (StorageError, SiteUnresponsive):
            raise
        except failures as error:
            deadline.no_answer(reason_of(error))
        else:
            deadline.answered()
            return answer
        await asyncio.sleep(deadline.pause_s)


def reason_of(error: Exception) -> str:
    """Return the message of an error, or its type if it has none, as a TimeoutError."""
    return str(error) or type(error).__name__
