"""How much of a copy has passed, whichever way it goes, and how long the rest will take. No streamflow in here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from medweave_connectors.transfer.bandwidth import Limit
from medweave_core.contracts.progress import duration

FIRST_S, EACH_S = 10.0, 30.0  # what is over sooner needs no word
WINDOW_S = 60.0  # in which a rate is measured: a line may have become faster, or slower
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is.

    Attributes:
        sent_bytes, total_bytes: what has been read at the source, and what will have been in the end.
        rate: bytes/s, of late.
        seconds_left: None where nothing moves.
    """

    sent_bytes: int
    total_bytes: int
    rate: float

    @property
    def seconds_left(self) -> float | None:
        """What the rest takes at this rate, s."""
        return (self.total_bytes - self.sent_bytes) / self.rate if self.rate > 0 else None

    def __str__(self) -> str:
        done, total, rate = (f"{each / _MIB:,.1f}" for each in (self.sent_bytes, self.total_bytes, self.rate))
        left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return f"{done}/{total} MiB: {rate} MiB/s{left}"


class Flow:
    """The bytes of one copy's streams.

    Attributes:
        sent_bytes: read at the source, archives' own headers with them.
        again_bytes: of these, what had been sent before and was lost with a connection.
        wire_bytes: what went between this machine and others, as it was encoded.
        total_bytes: what there is to be sent, once.
        tell: told from time to time how far it is, where it takes long.
        limit: what its streams share with those of others.
        known: with which codecs a stream from or to a place may be encoded.
    """

    def __init__(self, limit: Limit | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.sent_bytes = self.again_bytes = self.total_bytes = self.wire_bytes = 0
        self.tell: Callable[[Progress], None] = lambda _: None
        self.limit = limit or Limit(None)
        self.known: Callable[[Any], Collection[int]] = lambda _: ()
        self._clock = clock
        self._next: float | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def passed(self, num_bytes: int, wire_bytes: int = 0) -> None:
        """So many more."""
        self.sent_bytes += num_bytes
        self.wire_bytes += wire_bytes
        now = self._clock()
        if self._next is None:
            self._next = now + FIRST_S
        if not self._seen or now - self._seen[-1][0] >= 1.0:
            self._seen.append((now, self.sent_bytes))
            while now - self._seen[0][0] > WINDOW_S:
                self._seen.popleft()
        if now >= self._next:
            self._next = now + EACH_S
            self.tell(self._progress(now))

    def lost(self, sent_bytes: int, kept_bytes: int) -> None:
        """Of what was sent in one try, so much is there."""
        self.again_bytes += max(sent_bytes - kept_bytes, 0)

    def _progress(self, now: float) -> Progress:
        since, before = self._seen[0]
        done = min(self.sent_bytes - self.again_bytes, self.total_bytes)
        return Progress(done, self.total_bytes, (self.sent_bytes - before) / max(now - since, 1.0))


_flow: ContextVar[Flow | None] = ContextVar("flow", default=None)


@contextmanager
def counted_by(flow: Flow) -> Iterator[None]:
    """Streams in here are those of this copy."""
    token = _flow.set(flow)
    try:
        yield
    finally:
        _flow.reset(token)


def current() -> Flow:
    """That of the copy that is being made; another one where nobody asks for it."""
    return _flow.get() or Flow()
