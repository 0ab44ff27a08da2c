"""Progress of a copy: the bytes that have passed by any route, and the time that the rest will take. No streamflow in here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from medweave_connectors.transfer.bandwidth import BandwidthLimit
from medweave_core.contracts.progress import duration

FIRST_S, EACH_S = 10.0, 30.0  # a shorter copy reports nothing
WINDOW_S = 60.0  # over which a rate is measured: a link may become faster, or slower
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far a copy is.

    Attributes:
        sent_bytes, total_bytes: bytes read at the source so far, and in all.
        rate: bytes/s over the last minute.
    """

    sent_bytes: int
    total_bytes: int
    rate: float

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds that the rest takes at this rate; None where nothing moves."""
        return (self.total_bytes - self.sent_bytes) / self.rate if self.rate > 0 else None

    def __str__(self) -> str:
        done, total, rate = (f"{value / _MIB:,.1f}" for value in (self.sent_bytes, self.total_bytes, self.rate))
        remaining = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return f"{done}/{total} MiB: {rate} MiB/s{remaining}"


class TransferMeter:
    """Counts the bytes of one copy's streams.

    Attributes:
        sent_bytes: read at the source, with the headers of archives.
        again_bytes: of these, bytes that had been sent before and were lost with a connection.
        wire_bytes: bytes between this machine and others, as they were encoded.
        total_bytes: to be sent, once.
        limit: the bandwidth that the streams share with those of other copies.

    Args:
        report: called from time to time with the progress of a long copy.
    """

    def __init__(
        self,
        limit: BandwidthLimit | None = None,
        report: Callable[[TransferProgress], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sent_bytes = self.again_bytes = self.total_bytes = self.wire_bytes = 0
        self.limit = limit or BandwidthLimit(None)
        self._report, self._clock = report, clock
        self._next_report: float | None = None
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, num_bytes: int, wire_bytes: int = 0) -> None:
        """Count bytes that have passed."""
        self.sent_bytes += num_bytes
        self.wire_bytes += wire_bytes
        now = self._clock()
        if self._next_report is None:
            self._next_report = now + FIRST_S
        if not self._samples or now - self._samples[-1][0] >= 1.0:
            self._samples.append((now, self.sent_bytes))
            while now - self._samples[0][0] > WINDOW_S:
                self._samples.popleft()
        if now >= self._next_report:
            self._next_report = now + EACH_S
            self._report(self._progress(now))

    def start_attempt(self, missing_bytes: int) -> None:
        """Set the total: the bytes sent so far, once, and those that are missing."""
        self.total_bytes = self.sent_bytes - self.again_bytes + missing_bytes

    def count_lost(self, sent_bytes: int, kept_bytes: int) -> None:
        """Count the bytes of one attempt that were lost with its connection."""
        self.again_bytes += max(sent_bytes - kept_bytes, 0)

    def restart(self) -> None:
        """Count everything so far as lost: all of it is sent again."""
        self.again_bytes = self.sent_bytes

    def _progress(self, now: float) -> TransferProgress:
        since, before = self._samples[0]
        done = min(self.sent_bytes - self.again_bytes, self.total_bytes)
        return TransferProgress(done, self.total_bytes, (self.sent_bytes - before) / max(now - since, 1.0))
