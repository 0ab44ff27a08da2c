"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence

NOT_DEFINED = "not defined"
NO_INTERVAL = "–"


def figure(value: float | None, digits: int = 2) -> str:
    """Format a value: `0.87`, or words if it is not defined."""
    return NOT_DEFINED if value is None else f"{value:.{digits}f}"


def interval(bounds: Sequence[float | None] | None, digits: int = 2) -> str:
    """Return `0.82 to 0.91`, or a dash without an interval."""
    if bounds is None or any(bound is None for bound in bounds):
        return NO_INTERVAL
    low, high = bounds
    return f"{low:.{digits}f} to {high:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """Format a value with its sign: `+0.012`, `−0.004`, `±0.000`, or a dash if it is not defined."""
    if value is None:
        return "–"
    rounded = round(value, digits)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else '±'}{abs(rounded):.{digits}f}"


def minus(value: float) -> str:
    """Format a value with a minus sign as wide as a digit: `−400`."""
    return f"{value:g}".replace("-", "−")


def triple(values: Sequence[float]) -> str:
    """Format values as a product: `2 × 2 × 2`."""
    return " × ".join(f"{value:g}" for value in values)


def mib(num_bytes: float) -> str:
    """Return bytes as MiB with one decimal."""
    return f"{num_bytes / 2**20:.1f} MiB"


def plural(count: int, word: str) -> str:
    """Return a count with its noun: `1 lesion`, `3 lesions`."""
    return f"{count} {word}{'' if count == 1 else 's'}"
