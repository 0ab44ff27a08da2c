"""Deadlines by progress and pauses before retries: the one policy for commands and copies at all sites and on this machine.

Does not import streamflow. The time of a copy or a hash grows with its data, so it has no limit. Work without progress is canceled,
and the error names the place and the bytes so far.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

NO_PROGRESS_S = 600.0  # an archive on tape, or a file server that restarts, may take some minutes
# Before each further attempt after a lost connection: a kubelet or an API server that restarts needs some seconds.
RETRY_PAUSES_S = (0.5, 1.0, 3.0, 8.0, 15.0)
UNRESPONSIVE_S = 60.0  # a connection over which nothing comes, not even an answer to a ping
_CANCEL_S = 30.0  # programs are ended and remove their files
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
