"""The mark of shell commands that change nothing: after a lost connection such a command may be sent again."""

from __future__ import annotations

from collections.abc import Sequence

READ_ONLY = ": medweave-look; "  # a shell ignores it


def is_marked_read_only(words: Sequence[str]) -> bool:
    """Return whether a command of ours is marked as changing nothing."""
    return words[0].startswith(READ_ONLY)
