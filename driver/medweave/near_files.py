"""What lies where a path leads to nothing."""

from __future__ import annotations

import os
from pathlib import Path

from medweave_connectors.closest import closest

MOST = 12  # names of a folder in one message


def near(path: Path) -> tuple[list[str], str]:
    """The names in the lowest folder of a path that is there, and what to write for the rest; empty if none is close."""
    path = Path(os.path.realpath(path))  # of links in a circle, `resolve` makes a RuntimeError
    while not path.parent.is_dir():
        path = path.parent
    names = sorted(each.name for each in path.parent.iterdir() if each.name != path.name)
    return names, closest(path.name, names)


def expected_path(names: list[str]) -> str:
    """What is told to be expected, where a path of a document leads to nothing."""
    rest = ", …" if len(names) > MOST else ""
    return f"a path from the folder of this file{': one of ' + ', '.join(names[:MOST]) + rest if names else ''}"
