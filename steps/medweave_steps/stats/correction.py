"""Correction of p-values for several tests. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction, in the order of the input.

    The probability of one or more errors of the first kind in all tests stays below alpha, whether the tests depend on each other
    or not.

    Source: Holm 1979, Scandinavian Journal of Statistics 6(2):65-70.
    """
    ranked = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(ranked):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
