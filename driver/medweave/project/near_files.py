"""What lies where a path leads to nothing."""

from __future__ import annotations

import os
from pathlib import Path

from medweave_core.documents.closest_match import closest

MOST = 12  # names of a folder in one message


def gone(path: Path) -> str:
    """What to tell of a path that leads to nothing, or to where this account may not look; empty where something is there."""
    try:
        return "" if path.exists() else "is not there"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"


def near(path: Path) -> tuple[list[str], str]:
    """The names in the lowest folder of a path that is there, and what to write for the rest; empty if none is close."""
    path = Path(os.path.realpath(path))  # of links in a circle, `resolve` makes a RuntimeError
    cutoff = 0.6
    try:
        while not path.parent.is_dir():
            path, cutoff = path.parent, 0.8  # a folder may be one that is to be made
        names = sorted(each.name for each in path.parent.iterdir() if each.name != path.name)
    except OSError:  # not for this account
        return [], ""
    return names, closest(path.name, names, cutoff=cutoff)


def expected_path(names: list[str]) -> str:
    """What is told to be expected, where a path of a document leads to nothing."""
    rest = ", …" if len(names) > MOST else ""
    return f"a path from the folder of this file{': one of ' + ', '.join(names[:MOST]) + rest if names else ''}"
