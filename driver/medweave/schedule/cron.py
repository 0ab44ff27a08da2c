"""A schedule as a line of the user's crontab. The other lines stay as they are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from medweave.project.schedules import Schedule
from medweave.schedule.local_timer import REMOVED, command_of, run_program, state_of, times_of
from medweave.schedule.tick import cancel_previous
from medweave_core.documents.field_errors import fault_at
from medweave_core.errors import UserInputError

LOG = "log"
PAUSED = "# paused: "


class Cron:
    """Backend of one schedule: a line of the user's crontab."""

    def __init__(self, schedule: Schedule) -> None:
        if schedule.time_zone is not None:
            raise fault_at(
                schedule.path, ("timeZone",), "cron supports only the time zone of the machine.", seen=schedule.time_zone,
                expected="no timeZone", do="remove timeZone and write `when` in the time zone of the machine, or use systemd",
            )  # fmt: skip
        self._schedule = schedule

    def create(self) -> str:
        """Write or replace the line; a paused one stays paused."""
        schedule, paused = self._schedule, self.state()["state"] == "paused"
        schedule.folder.mkdir(parents=True, exist_ok=True)
        entry = line(
            times_of(schedule), command_of(schedule), schedule.path.parent, os.environ.get("PATH", os.defpath),
            schedule.folder / LOG,
        )  # fmt: skip
        self._write(PAUSED + entry if paused else entry)
        return (
            f"is a line in your crontab; {schedule.folder / LOG} receives the output of its runs. cron does not "
            "start runs that were missed while the machine was off"
        )

    def pause(self, *, paused: bool) -> None:
        """Turn the line into a comment, or back."""
        entry = line_of(self._table(), self._schedule.name)
        if entry is None:
            raise UserInputError(
                f"schedule {self._schedule.name}: its line is missing in the crontab.", seen="the line was removed",
                expected=f"a line below '{mark(self._schedule.name)}'", do="create it again: medweave schedule create",
            )  # fmt: skip
        entry = entry.removeprefix(PAUSED)
        self._write(PAUSED + entry if paused else entry)

    def remove(self) -> str:
        """Remove the line and cancel the current run."""
        self._write(None)
        cancel_previous(self._schedule.folder)
        return REMOVED

    def state(self) -> dict[str, Any]:
        """Return the state by the crontab."""
        entry = line_of(self._table(), self._schedule.name)
        word = "not found" if entry is None else "paused" if entry.startswith(PAUSED) else "waits"
        return state_of(self._schedule, word=word)

    def _table(self) -> str:
        process = run_program(["crontab", "-l"])
        return process.stdout if process.returncode == 0 else ""  # the user has no crontab yet

    def _write(self, entry: str | None) -> None:
        process = run_program(["crontab", "-"], with_line(self._table(), self._schedule.name, entry))
        if process.returncode:
            raise UserInputError(
                f"schedule {self._schedule.name}: cron refused the change.", seen=process.stderr.strip()[:300],
                expected="an account that may have a crontab", do="ask the machine's administrator, or use place: systemd",
            )  # fmt: skip


# ---- pure


def mark(schedule: str) -> str:
    """Return the comment above the line of a schedule."""
    return f"# medweave schedule {schedule}"


def line(times: str, words: Sequence[str | Path], folder: Path, search: str, log: Path) -> str:
    """Return the line of a schedule. Each `%` is escaped, since it would end the command.

    Args:
        times: five fields.
        folder: its working directory.
        search: PATH of the user who creates it.
        log: file to which its output is appended.
    """
    command = " ".join(shlex.quote(str(word)) for word in words)
    script = f"cd {shlex.quote(str(folder))} && PATH={shlex.quote(search)} {command} >> {shlex.quote(str(log))} 2>&1"
    return f"{' '.join(times.split())} {script}".replace("%", "\\%")


def with_line(table: str, schedule: str, entry: str | None) -> str:
    """Return the crontab with the line of a schedule added, replaced or, for None, removed."""
    lines = list(_others(table, schedule, [] if entry is None else [mark(schedule), entry]))
    return "".join(f"{line}\n" for line in lines)


def line_of(table: str, schedule: str) -> str | None:
    """Return the line of a schedule; None if the crontab has no such line."""
    lines = table.splitlines()
    if mark(schedule) not in lines[:-1]:
        return None
    return lines[lines.index(mark(schedule)) + 1]


def _others(table: str, schedule: str, entry: Sequence[str]) -> Iterator[str]:
    lines, is_replaced = iter(table.splitlines()), False
    for row in lines:
        if row != mark(schedule):
            yield row
            continue
        is_replaced = True
        next(lines, None)
        yield from entry
    if not is_replaced:
        yield from entry
