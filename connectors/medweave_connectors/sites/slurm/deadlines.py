"""Deadline for a Slurm that does not answer: retries, notices to the user, and the end. Does not import streamflow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from medweave_core.errors import StorageError

NOTICE_AFTER_S, GIVE_UP_AFTER_S = 60.0, 1800.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0

T = TypeVar("T")


class SiteUnresponsive(Exception):
    """Slurm has not answered for half an hour; the argument is the last message."""


class ResponseDeadline:
    """Time since Slurm last answered. A failed query changes nothing but that time.

    Attributes:
        last_message: the last error since the last answer; may be empty.
    """

    def __init__(
        self, notice: Callable[[str], None], *, consequence: str = "the job stays submitted", at_once: bool = False
    ) -> None:
        """Start the clock; the first answer resets it.

        Args:
            notice: called with a sentence for the user when Slurm has not answered for long, and when it answers again.
            consequence: what the missing answer means for the job or run, in that sentence.
            at_once: notify at the first failed query, because the user waits for this answer.
        """
        self._notice, self._notified, self.last_message = notice, False, ""
        self._consequence, self._at_once = consequence, at_once
        self._answered = time.monotonic()

    def answered(self) -> None:
        """Reset the clock after an answer."""
        if self._notified:
            self._notice("Slurm answers again")
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
            self._notice(f"Slurm does not answer; {self._consequence} ({self.last_message or 'no message'})")

    @property
    def pause_s(self) -> float:
        """Return the time to the next query: a tenth of the time without an answer."""
        return min(max((time.monotonic() - self._answered) / 10, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


async def retry_until_answered(
    query: Callable[[], Awaitable[T]],
    deadline: ResponseDeadline,
    *,
    failures: tuple[type[Exception], ...] = (Exception,),
) -> T:
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
