"""The parts of a job that its cache key covers: which of them differ between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COMMAND = "command"


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the parts whose digests differ.

    The command is left out if an input differs: it contains the value or path of that input.
    """
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    inputs = [name for name in names if name.startswith("input ")]
    return tuple(name for name in names if not (inputs and name == COMMAND))


def listed(names: Sequence[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
