"""The bandwidth limit that all copies of a run share. No streamflow in here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from medweave_core.errors import UsageError

MIB = 2**20
LEAST_MIB_PER_S = 0.1  # below, one block takes longer than the deadline for a stream without progress


class BandwidthShare:
    """The share of one stream: all streams that run at the same time have equal shares.

    Attributes:
        rate: bytes/s; None for no limit.

    Args:
        on_change: called when the rate has changed.
    """

    def __init__(self, on_change: Callable[[], object] = lambda: None) -> None:
        self.rate: float | None = None
        self._on_change = on_change
        self._free_at = 0.0

    def set_rate(self, rate: float | None) -> None:
        """Change the rate."""
        self.rate = rate
        self._on_change()

    async def spend(self, num_bytes: int) -> None:
        """Wait for as long as so many bytes take."""
        if self.rate is not None:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + num_bytes / self.rate
            await asyncio.sleep(self._free_at - now)


class BandwidthLimit:
    """One limit, shared equally by the running streams.

    Args:
        mib_per_s: None for no limit.
    """

    def __init__(self, mib_per_s: float | None) -> None:
        self._rate = None if mib_per_s is None else mib_per_s * MIB
        self._shares: list[BandwidthShare] = []

    @contextmanager
    def share(self, on_change: Callable[[], object] = lambda: None) -> Iterator[BandwidthShare]:
        """Yield the share of one stream while it runs."""
        share = BandwidthShare(on_change)
        self._shares.append(share)
        self._divide()
        try:
            yield share
        finally:
            self._shares.remove(share)
            self._divide()

    def _divide(self) -> None:
        for share in self._shares:
            share.set_rate(None if self._rate is None else self._rate / len(self._shares))


def parse_limit(mib_per_s: float | None) -> float | None:
    """Return a limit in MiB/s; None for no limit.

    Raises:
        UsageError: it is too low.
    """
    if mib_per_s is None or mib_per_s >= LEAST_MIB_PER_S:
        return mib_per_s
    raise UsageError(
        "dataManager.config.limitMiBps: invalid bandwidth limit.",
        seen=str(mib_per_s),
        expected=f"MiB/s, {LEAST_MIB_PER_S} or more",
        do="write limitMiBps: 10, or remove the key",
    )
