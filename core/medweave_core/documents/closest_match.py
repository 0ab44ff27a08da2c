"""The closest match of an unknown name. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def closest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Return a suggestion for an unknown name; empty if no known name is close.

    Args:
        cutoff: least similarity, 0 to 1.
    """
    matches = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"write '{matches[0]}' (closest match)" if matches else ""
