"""The closest match of an unknown name. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_SHORTEST_PART = 4


def closest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Return a suggestion for an unknown name; empty if no known name is close.

    The only known name that contains the unknown one comes first: `--segmentation-model` for `--model`.

    Args:
        cutoff: least similarity, 0 to 1.
    """
    part = name.lstrip("-")
    longer = [one for one in known if len(part) >= _SHORTEST_PART and part in one]
    matches = longer if len(longer) == 1 else difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"write '{matches[0]}' (closest match)" if matches else ""
