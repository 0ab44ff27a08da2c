"""Differences as a person writes them; every digit stays in the figures of gate_decision.json."""

from __future__ import annotations

import math
from collections.abc import Sequence

SIGNIFICANT, MOST_DECIMALS = 2, 4
_CLOSEST = 6


def decimals_for(values: Sequence[float]) -> int:
    """Return the number of decimals, from 2 to 4, that shows the largest of some values with two significant digits."""
    largest = max((abs(value) for value in values), default=0.0)
    if not 0 < largest < math.inf:
        return SIGNIFICANT
    first = math.floor(math.log10(largest))  # -2 for 0.012
    return min(max(SIGNIFICANT - 1 - first, SIGNIFICANT), MOST_DECIMALS)


def signed(value: float, decimals: int) -> str:
    """Format a value with its sign: `+0.012`, `−0.40`, `±0.00`."""
    rounded = round(value, decimals)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else '±'}{abs(rounded):.{decimals}f}"


def decimals_beside(value: float, bound: float, decimals: int) -> int:
    """Return the decimals that keep a rounded value on its own side of a bound: `decimals`, or more if needed.

    Example: "−0.010, must stay above −0.01" explains nothing; with one more digit the value is −0.0104. A value that is closer to
    the bound than a millionth counts as equal to it.
    """
    for more in range(decimals, _CLOSEST + 1):
        rounded = round(value, more)
        if (rounded > bound) == (value > bound) and (rounded == bound) == (value == bound):
            return more
    return decimals
