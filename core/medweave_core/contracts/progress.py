"""The progress line: what a step says on stderr after each unit of work, and whoever started it reads."""

from __future__ import annotations

import math

JSON_PREFIX = "medweave-progress "


def duration(seconds: float) -> str:
    """Return seconds as text: `8 s`, `2 min 05 s`, `3 h 10 min`; `? s` for a number that is not finite."""
    if not math.isfinite(seconds):
        return "? s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def sentence(*, unit: str, done: int, total: int, seconds_left: float, detail: str) -> str:
    """Return a progress line as people read it, without the step's name: `epoch 4/20: loss 0.31, 1 min 10 s left`."""
    left = f", {duration(seconds_left)} left" if done < total else ""
    return f"{unit} {done}/{total}{': ' + detail if detail else ''}{left}"
