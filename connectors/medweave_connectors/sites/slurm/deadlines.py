"""How long a Slurm that does not answer is asked again, and what the user hears of it. No streamflow in here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from medweave_core.errors import StorageError

SILENCE_NOTICE_S, SILENCE_END_S = 60.0, 1800.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0

T = TypeVar("T")


class SiteSilent(Exception):
    """Slurm has not answered for half an hour; the argument is the last that was heard."""


class Patience:
    """Waits out a silence. What fails without a word of Slurm counts for nothing; only the time of it does.

    Attributes:
        said: the last that was heard in a silence; may be empty.
    """

    def __init__(
        self, notice: Callable[[str], None], *, follows: str = "the job is not given up", at_once: bool = False
    ) -> None:
        """A silence begins here, until there is an answer.

        Args:
            notice: gets a sentence for the user when a silence has become long, and one when it is over.
            follows: what the silence means, in that sentence.
            at_once: the user waits for this answer alone, and hears of the silence when it begins.
        """
        self._notice, self._told, self.said = notice, False, ""
        self._follows, self._at_once = follows, at_once
        self._answered = time.monotonic()

    def answered(self) -> None:
        """Slurm has said something."""
        if self._told:
            self._notice("Slurm answers again")
        self._answered, self._told, self.said = time.monotonic(), False, ""

    def silent(self, said: str) -> None:
        """Slurm was asked and has said nothing.

        Raises:
            SiteSilent: for half an hour.
        """
        self.said = said or self.said
        silence_s = time.monotonic() - self._answered
        if silence_s > SILENCE_END_S:
            raise SiteSilent(self.said)
        if (self._at_once or silence_s > SILENCE_NOTICE_S) and not self._told:
            self._told = True
            self._notice(f"Slurm does not answer; {self._follows} ({self.said or 'no word'})")

    @property
    def pause_s(self) -> float:
        """Time to the next question: a tenth of the silence."""
        return min(max((time.monotonic() - self._answered) / 10, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


async def until_answered(
    ask: Callable[[], Awaitable[T]], patience: Patience, *, silences: tuple[type[Exception], ...] = (Exception,)
) -> T:
    """The answer to a question, which is asked again as long as it fails.

    Args:
        silences: the kinds of failures after which nothing is known; any other is raised.

    Raises:
        SiteSilent: it has failed for half an hour.
        StorageError: this machine's own disk is full.
    """
    while True:
        try:
            answer = await ask()
        except (StorageError, SiteSilent):
            raise
        except silences as error:
            patience.silent(reason_of(error))
        else:
            patience.answered()
            return answer
        await asyncio.sleep(patience.pause_s)


def reason_of(error: Exception) -> str:
    """Its words; its kind where it has none, as a TimeoutError."""
    return str(error) or type(error).__name__
