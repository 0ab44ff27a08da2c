"""A rate limit as a token bucket. Does not import streamflow."""

from __future__ import annotations

import asyncio
import time


class TokenBucket:
    """Allows some actions at once, and then a constant number of them per second.

    Args:
        burst: actions at once after a long pause.
        per_second: actions per second in the long run.
    """

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._tokens, self._since = float(burst), 0.0
        self._turn = asyncio.Lock()

    def take(self, now: float) -> bool:
        """Return True if one more action is allowed at this time, s."""
        self._tokens = min(self._burst, self._tokens + (now - self._since) * self._per_second)
        self._since = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def wait(self) -> None:
        """Return when one more action is allowed, in the order of the calls."""
        async with self._turn:
            while not self.take(time.monotonic()):
                await asyncio.sleep((1 - self._tokens) / self._per_second)
