"""One line on stderr per unit of work: plain text for people and logs, JSON where the caller wants it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from medweave_core.contracts.progress import JSON_PREFIX, duration, sentence
from medweave_steps.runtime.environment import wants_json_progress

__all__ = ["JSON_PREFIX", "Progress", "duration"]

MOST_LINES = 100
_BETWEEN_LINES_S = 1.0


class Progress:
    """A counter of finished units of work, which estimates the remaining time from the mean pace so far.

    Args:
        is_quick: the units can be thousands that take milliseconds each, such as images: of more than `MOST_LINES` it prints at
            most one line per second, and the last one.
    """

    def __init__(
        self, verb: str, *, unit: str, total: int, done: int = 0, quiet: bool = False, is_quick: bool = False
    ) -> None:
        self.verb, self.unit, self.total, self.done, self.quiet = verb, unit, total, done, quiet
        self._is_thinned = is_quick and total > MOST_LINES
        self._first = done
        self._started = time.monotonic()
        self._printed = -_BETWEEN_LINES_S

    def step(self, detail: str = "", **figures: Any) -> None:
        """Report one finished unit.

        Args:
            detail: text for people (`loss 0.31, Dice 0.78`); never patient data.
            figures: the same as numbers, for machines.
        """
        self.done += 1
        if self.quiet:
            return
        elapsed = time.monotonic() - self._started
        if self._is_thinned and self.done < self.total and elapsed - self._printed < _BETWEEN_LINES_S:
            return
        self._printed = elapsed
        left = elapsed / (self.done - self._first) * (self.total - self.done)
        if wants_json_progress():
            line: Mapping[str, Any] = {
                "verb": self.verb, "unit": self.unit, "done": self.done, "total": self.total,
                "seconds_left": round(left, 1), "detail": detail, **figures,
            }  # fmt: skip
            text = JSON_PREFIX + json.dumps(line)
        else:
            text = sentence(unit=self.unit, done=self.done, total=self.total, seconds_left=left, detail=detail)
            text = f"{self.verb}: {text}"
        print(text, file=sys.stderr, flush=True)
