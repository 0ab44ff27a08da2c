"""Suggestions for paths that do not exist."""

from __future__ import annotations

import os
from pathlib import Path

from medweave_core.documents.closest_match import closest

MOST = 12  # names of a folder in one message


def gone(path: Path) -> str:
    """Return why a path cannot be used: it does not exist, or must not be read; empty if it exists."""
    try:
        return "" if path.exists() else "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def near(path: Path) -> tuple[list[str], str]:
    """Return the names in the lowest existing folder of a path, and the closest match for the next part, or an empty text."""
    path = Path(os.path.realpath(path))  # of links in a circle, `resolve` makes a RuntimeError
    cutoff = 0.6
    try:
        while not path.parent.is_dir():
            path, cutoff = path.parent, 0.8  # a folder may be one that is to be made
        names = sorted(sibling.name for sibling in path.parent.iterdir() if sibling.name != path.name)
    except OSError:  # not for this account
        return [], ""
    return names, closest(path.name, names, cutoff=cutoff)


def expected_path(names: list[str]) -> str:
    """Return the expectation for a path of a document that does not exist."""
    rest = ", …" if len(names) > MOST else ""
    return f"a path relative to the folder of this file{': one of ' + ', '.join(names[:MOST]) + rest if names else ''}"
