"""The cluster's control groups: one separate group in every hierarchy, so that all can be removed again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path


def mounted() -> str:
    """Return the machine's mounts, as the kernel lists them."""
    return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")


def hierarchies(mounts: str) -> list[Path]:
    """Mount points of the control group hierarchies: all of version 1, or the one of version 2."""
    rows = [line.split() for line in mounts.splitlines()]
    old = [Path(row[1]) for row in rows if len(row) > 2 and row[2] == "cgroup"]
    return old or [Path(row[1]) for row in rows if len(row) > 2 and row[2] == "cgroup2"]


def all_mounted(mounts: str) -> list[Path]:
    """Mount points of both versions: in addition to version 1, programs may use a mounted version 2 as well."""
    rows = [line.split() for line in mounts.splitlines()]
    return [Path(row[1]) for row in rows if len(row) > 2 and row[2] in ("cgroup", "cgroup2")]


def remaining(roots: Sequence[Path], name: str) -> list[Path]:
    """Groups of that name, and below, that still exist; the deepest first."""
    groups = [folder for root in roots for folder in [root / name, *(root / name).rglob("*")] if folder.is_dir()]
    return sorted(groups, key=lambda folder: -len(folder.parts))


def remove(roots: Sequence[Path], name: str, patience_s: float = 10) -> list[Path]:
    """Remove all groups of that name; return those that could not be removed, because processes live in them."""
    deadline = time.monotonic() + patience_s
    while left := remaining(roots, name):
        for folder in left:
            try:
                folder.rmdir()
            except OSError:
                continue
        if time.monotonic() > deadline:
            return remaining(roots, name)
        time.sleep(0.05)
    return []
