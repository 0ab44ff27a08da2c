"""One line on stderr per unit of work: plain text for people and logs, JSON where the caller asked for it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from medweave_steps.runtime.environment import wants_json_progress

JSON_PREFIX = "medweave-progress "


def duration(seconds: float) -> str:
    """Seconds as people read them: `8 s`, `2 min 05 s`, `3 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Counts units of work and says how long the rest will take, from the mean pace so far."""

    def __init__(self, verb: str, *, unit: str, total: int) -> None:
        self.verb, self.unit, self.total, self.done = verb, unit, total, 0
        self._started = time.monotonic()

    def step(self, detail: str = "", **figures: Any) -> None:
        """One unit is finished.

        Args:
            detail: what a person wants to read about it (`loss 0.31, Dice 0.78`); never patient data.
            figures: the same as numbers, for machines.
        """
        self.done += 1
        elapsed = time.monotonic() - self._started
        left = elapsed / self.done * (self.total - self.done)
        if wants_json_progress():
            line: Mapping[str, Any] = {
                "verb": self.verb, "unit": self.unit, "done": self.done, "total": self.total,
                "seconds_left": round(left, 1), "detail": detail, **figures,
            }  # fmt: skip
            text = JSON_PREFIX + json.dumps(line)
        else:
            tail = f", {duration(left)} left" if self.done < self.total else ""
            text = f"{self.verb}: {self.unit} {self.done}/{self.total}{': ' + detail if detail else ''}{tail}"
        print(text, file=sys.stderr, flush=True)
