"""Means of metrics that are not defined everywhere."""

from __future__ import annotations

from collections.abc import Iterable


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the defined values, rounded to 4 digits; None if none is defined."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None
