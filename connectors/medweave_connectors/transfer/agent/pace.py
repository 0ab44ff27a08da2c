"""When the blocks of a stream are worth encoding: a slow link is given as few bytes as can be, and a quick one is not kept waiting.

Part of the far end's program, as `encoding` is: a bare python3 of 3.8 or later runs this text.

A stream begins with some blocks encoded and some as they are, each made only when the one before it has left. A link that goes
slower than the encoder could is tried encoded, and what was quicker is kept. What is measured is the whole way: the source, the
link, and the other end with its decoder.
"""

from __future__ import annotations

import time
from typing import Callable  # noqa: UP035 (3.8)

_MIB = 2**20
FIRST = 4 * _MIB  # encoded, of any stream: what costs a quick link 3 ms each, and saves a slow one a second
PROBE = 8 * _MIB  # as it is, then; the first half fills what kernels and ssh hold
IN_STEP = 16  # blocks at most that are made only when the one before them has left
FILL = 6 * _MIB  # after a change: what was made before it leaves first
TRY = 10 * _MIB  # in which what is new is measured
WINDOW = 16 * _MIB  # in which a speed is measured
REST = 512 * _MIB  # for which what was tried holds; the next time twice as many
FIRST_TRY = 128 * _MIB  # that go as they are before encoding is tried where it may pay or not
BUSY = 0.7  # share of its time in which the encoder works: then the link may wait for it
SLOW = 50e6  # bytes in a second; less is the link's doing, or the source's
# An encoder that is so many times as quick as what it saves bytes for is worth a try: the other end decodes for as long.
KEEPS_UP = 2.0
MAY_PAY = 1.25  # less than this, and it cannot
GAIN = 1.15  # that is no accident
GAIN_IN_STEP = 1.6  # over blocks that were made one by one: made ahead of the link, they would have gone quicker, too
AGAIN = 64 * _MIB  # after which encoding is tried again where it has lost; the next time after twice as many
LOST = 1.1  # by which a link is slower than encoding has been: it was quicker, or seemed so


class Pace:
    """Whether the next block is encoded.

    Attributes:
        thorough: there is time to take more of a block.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.thorough = False
        self._in_step = IN_STEP
        self._could = 0.0  # bytes that are encoded in a second, at best; 0: not known, here and below
        self._encoded_speed = self._raw_speed = 0.0  # of the whole way
        self._rest, self._again, self._next_try = REST, AGAIN, FIRST_TRY
        self._gain = GAIN
        self._before, self._last = 0, clock()  # wire bytes of the block before, and when it was made
        self._begin("first encoded", FIRST)

    @property
    def encodes(self) -> bool:
        """Whether the next block may be encoded."""
        return self._now.endswith("encoded")

    @property
    def in_step(self) -> bool:
        """Whether the next block is made only when the one before it has left: so its time is the link's."""
        return self._begins and self._in_step > 0

    @property
    def _begins(self) -> bool:
        return self._now in ("first encoded", "probing raw")

    def passed(self, num_bytes: int, wire_bytes: int, busy_s: float) -> None:
        """A block was made, after so much work on it; those before it have left, or are about to."""
        now = self._clock()
        waited_s, self._last = max(now - self._last - busy_s, 1e-9), now
        before, self._before = self._before, wire_bytes
        if self._begins:
            self._in_step -= 1
            if wire_bytes < num_bytes:
                self._could = max(self._could, num_bytes / max(busy_s, 1e-9))
            self._step(num_bytes, wire_bytes, before, waited_s)
            return
        self._left -= num_bytes
        self._busy_s += busy_s
        self._saved += num_bytes - wire_bytes
        if self._left <= 0:
            seconds = max(now - self._since, 1e-9)
            self._judge((self._window - self._left) / seconds, self._busy_s / seconds)

    def _begin(self, what: str, left: int) -> None:
        self._now, self._left, self._window = what, left, left
        self._since, self._busy_s, self._saved = self._clock(), 0.0, 0
        self._speed, self._steps = 0.0, (0, 0.0)

    # ---- the first blocks

    def _step(self, num_bytes: int, wire_bytes: int, before: int, waited_s: float) -> None:
        """A block has waited for so long while the one before it left, and for its source."""
        last, self._speed = self._speed, before / waited_s
        slow = SLOW / 4 if self.encodes else SLOW
        # A single block may have waited for a processor.
        if before and (self._speed < slow / 4 or (last and max(last, self._speed) < slow)):
            self._raw_speed, self._gain = 0.0 if self.encodes else max(last, self._speed), GAIN_IN_STEP
            self._begin("filling encoded", FILL)
        elif not self.encodes or wire_bytes < num_bytes:  # of what stays as it is in any case nothing is learnt
            if self._left <= self._window // 2:
                self._steps = self._steps[0] + before, self._steps[1] + waited_s
            self._left -= num_bytes
            if self._left <= 0 and self.encodes:
                self._begin("probing raw", PROBE)
            elif self._left <= 0:
                self._judge_raw(self._steps[0] / self._steps[1], GAIN_IN_STEP)

    # ---- all others

    def _judge(self, speed: float, busy: float) -> None:
        """A window is over."""
        if self._now == "encoded":
            self._judge_encoded(speed, busy)
        elif self._now == "raw":
            self._judge_raw(speed)
        elif self._now == "filling raw":
            self._begin("trying raw", TRY)
        elif self._now == "trying raw":
            self._raw_speed = speed
            self._stay("raw" if speed > self._encoded_speed else "resting encoded")
        else:
            if self._now == "resting encoded":
                self._raw_speed = 0.0  # which is long ago
            self._begin("encoded", TRY)

    def _judge_encoded(self, speed: float, busy: float) -> None:
        if not self._saved:  # all of it stays as it is in any case
            self._begin("encoded", WINDOW)
            return
        self._encoded_speed = speed
        if busy <= BUSY and speed < SLOW:
            self.thorough = self.thorough or busy < BUSY / 2
            self._begin("encoded", WINDOW)
        elif self.thorough:
            self.thorough = False
            self._begin("encoded", WINDOW)
        elif self._raw_speed > speed:
            self._stay("raw")
        elif self._raw_speed and speed >= self._gain * self._raw_speed:
            self._stay("resting encoded")
        else:
            self._begin("filling raw", FILL)

    def _judge_raw(self, speed: float, gain: float = GAIN) -> None:
        self._raw_speed, self._gain = speed, gain
        self._next_try -= self._window
        slower = speed * (LOST if self._encoded_speed else KEEPS_UP) < (self._encoded_speed or self._could)
        if slower or (self._next_try <= 0 and speed * MAY_PAY < self._could):
            self._begin("filling encoded", FILL)
        else:
            self._begin("raw", WINDOW)

    def _stay(self, how: str) -> None:
        """It was tried, and this was quicker."""
        if how == "raw":
            self._next_try, self._again = self._again, 2 * self._again
            self._begin(how, WINDOW)
        else:
            self._begin(how, self._rest)
            self._rest *= 2
