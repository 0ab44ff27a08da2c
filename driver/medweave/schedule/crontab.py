"""The lines of a crontab that are a schedule's. Pure: the others' lines stay as they are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

PAUSED = "# paused: "


def mark(schedule: str) -> str:
    """The line above the schedule's own."""
    return f"# medweave schedule {schedule}"


def line(times: str, words: Sequence[str | Path], folder: Path, search: str, log: Path) -> str:
    """What cron starts. A `%` would end the command there.

    Args:
        times: five fields.
        folder: where it runs.
        search: PATH of the one who made it.
        log: what it prints is added to.
    """
    command = " ".join(shlex.quote(str(word)) for word in words)
    told = f"cd {shlex.quote(str(folder))} && PATH={shlex.quote(search)} {command} >> {shlex.quote(str(log))} 2>&1"
    return f"{' '.join(times.split())} {told}".replace("%", "\\%")


def with_line(table: str, schedule: str, own: str | None) -> str:
    """The crontab with another line for a schedule, at its place; None takes it away."""
    lines = list(_others(table, schedule, [] if own is None else [mark(schedule), own]))
    return "".join(f"{each}\n" for each in lines)


def line_of(table: str, schedule: str) -> str | None:
    """The line of a schedule; None where there is none."""
    lines = table.splitlines()
    if mark(schedule) not in lines[:-1]:
        return None
    return lines[lines.index(mark(schedule)) + 1]


def _others(table: str, schedule: str, own: Sequence[str]) -> Iterator[str]:
    lines, was_there = iter(table.splitlines()), False
    for each in lines:
        if each != mark(schedule):
            yield each
            continue
        was_there = True
        next(lines, None)
        yield from own
    if not was_there:
        yield from own
