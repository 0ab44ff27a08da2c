"""What all copies of a run may take of a line together. No streamflow in here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from medweave_core.errors import UsageError

MIB = 2**20
LEAST_MIB_PER_S = 0.1  # slower, a block takes longer than a silent stream is waited for


class Share:
    """What one stream may take: as much as each other one that goes at the same time.

    Attributes:
        rate: bytes/s; None for all there is.
        changed: called when it has changed.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self.changed: Callable[[], None] = lambda: None
        self._free_at = 0.0

    async def spend(self, num_bytes: int) -> None:
        """Waits for as long as so many bytes take."""
        if self.rate is not None:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + num_bytes / self.rate
            await asyncio.sleep(self._free_at - now)


class Limit:
    """One limit, shared equally by the streams that go.

    Args:
        mib_per_s: None for none.
    """

    def __init__(self, mib_per_s: float | None) -> None:
        self._rate = None if mib_per_s is None else mib_per_s * MIB
        self._shares: list[Share] = []

    @contextmanager
    def share(self) -> Iterator[Share]:
        """The share of one stream while it goes."""
        mine = Share()
        self._shares.append(mine)
        self._divide()
        try:
            yield mine
        finally:
            self._shares.remove(mine)
            self._divide()

    def _divide(self) -> None:
        for each in self._shares:
            each.rate = None if self._rate is None else self._rate / len(self._shares)
            each.changed()


def read_limit(given: float | None) -> float | None:
    """A limit in MiB/s; None for none.

    Raises:
        UsageError: it is too low to be one.
    """
    if given is None or given >= LEAST_MIB_PER_S:
        return given
    raise UsageError(
        "dataManager.config.limitMiBps: this is no limit.",
        seen=str(given),
        expected=f"MiB/s, {LEAST_MIB_PER_S} or more",
        do="write limitMiBps: 10, or leave it out",
    )
