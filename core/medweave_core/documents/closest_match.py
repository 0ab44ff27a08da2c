"""What to write in place of a name that is not known. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def closest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str:
    """What to do about a name that is not known; empty where none is close.

    Args:
        cutoff: how alike they must be, 0 to 1.
    """
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"write '{found[0]}' (closest name)" if found else ""
