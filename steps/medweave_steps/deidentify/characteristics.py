"""Characteristics of patients in tables: numbers, and words of a list; anything else may be free text."""

from __future__ import annotations

import math

_SEXES = frozenset({"f", "m", "o", "female", "male", "other"})
_HIGHEST_AGE = 89  # years; older patients are rare enough to be identified by their age (US HIPAA, 45 CFR 164.514)


def clean_sex(value: str) -> str | None:
    """Return a word for the sex; None for any other text."""
    return value if value.lower() in _SEXES else None


def clean_number(value: str) -> str | None:
    """Return a finite number; None for any other text."""
    try:
        number = float(value.removesuffix("+"))
    except ValueError:
        return None
    return f"{number:g}" if math.isfinite(number) else None


def clean_age(value: str) -> str | None:
    """Return an age in years, above 89 as 90; None for any other text."""
    number = clean_number(value)
    if number is not None and (float(number) > _HIGHEST_AGE or value.endswith("+")):
        return str(_HIGHEST_AGE + 1)
    return number
