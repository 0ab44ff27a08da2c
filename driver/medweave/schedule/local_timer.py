"""A schedule on this machine, such as a login node: a timer of the user's systemd, or a line of the user's crontab."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.project.cron_times import on_calendar
from medweave.project.files import write_atomically
from medweave.project.schedules import Schedule
from medweave.schedule import crontab, units
from medweave.schedule.state import alone, read_memory
from medweave.schedule.tick import end_the_one_before
from medweave_core.documents.field_errors import fault_at
from medweave_core.errors import BackendMissingError, StepError, UserInputError

LOG = "log"
RECEIVER = "-receive.service"


def command_of(schedule: Schedule, action: str = "run") -> list[str | Path]:
    """What is started at each time, or what listens (`receive`)."""
    return [Path(sys.executable).with_name("medweave"), "schedule", action, schedule.path]


def state_of(schedule: Schedule, *, word: str) -> dict[str, Any]:
    """What the list tells.

    Args:
        word: what the scheduler of the machine says: waits, paused or not there.
    """
    last = read_memory(schedule.folder).last
    return {
        "state": "running" if _goes_on(schedule) else word,
        "last": dataclasses.asdict(last) if last is not None else None,
    }


def _goes_on(schedule: Schedule) -> bool:
    if not schedule.folder.is_dir():
        return False
    with alone(schedule.folder) as is_alone:
        return not is_alone


def _times(schedule: Schedule) -> str:
    if schedule.when is None:
        raise fault_at(
            schedule.path, (), "the key 'when' is missing.", seen="a schedule without times",
            expected="when: five fields, such as 0 2 * * *", do="write it; medweave schedule run starts one now",
        )  # fmt: skip
    return schedule.when


def _ended(words: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which(words[0]) is None:
        raise BackendMissingError(
            f"{words[0]} is not installed.", seen=f"no program {words[0]} on the PATH",
            expected="a machine with systemd (place: systemd) or cron (place: cron)", do="name the other place",
        )  # fmt: skip
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False)


REMOVED = "is removed; runs and results stay"


class Systemd:
    """A timer and a service of the user's own manager."""

    def __init__(self, schedule: Schedule) -> None:
        if schedule.overlap != "forbid":
            raise fault_at(
                schedule.path, ("overlap",), "systemd starts nothing twice.", seen=schedule.overlap, expected="forbid",
                do="take the key out, or use cron or kubernetes",
            )  # fmt: skip
        self._schedule, self._name = schedule, units.unit_name(schedule.name)
        configured = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
        self._folder = Path(configured) / "systemd" / "user"

    @property
    def _receives(self) -> bool:
        return "receive" in (self._schedule.watch or {})

    def create(self) -> str:
        """Writes the units and starts the timer; one that is paused stays paused."""
        was_paused = self.state()["state"] == "paused"
        made = self._units()
        before = {path: path.read_text(encoding="utf-8") if path.is_file() else None for path in made}
        try:
            for path, text in made.items():
                write_atomically(path, text)
            self._start(was_paused=was_paused)
        except StepError:
            self._take_back(before)
            raise
        return (
            f"is {self._name}.timer; `journalctl --user -u {self._name}` has what its runs say, and "
            "`loginctl enable-linger` lets it run while you are not logged in"
        )

    def _units(self) -> dict[Path, str]:
        schedule, search = self._schedule, os.environ.get("PATH", os.defpath)
        times, folder = on_calendar(_times(schedule), schedule.time_zone), schedule.path.parent
        made = {self._file("service"): units.service(schedule.name, command_of(schedule), folder, search)}
        if self._receives:
            listens = units.receiver(schedule.name, command_of(schedule, "receive"), folder, search)
            made[self._folder / f"{self._name}{RECEIVER}"] = listens
        made[self._file("timer")] = units.timer(schedule.name, times, catches_up=schedule.start_within_s > 0)
        return made

    def _start(self, *, was_paused: bool) -> None:
        self._systemctl("daemon-reload")
        if self._receives:  # also while it is paused: a sender does not come again
            self._systemctl("enable", f"{self._name}{RECEIVER}")
            self._systemctl("restart", f"{self._name}{RECEIVER}")
        if not was_paused:
            self._systemctl("enable", f"{self._name}.timer")
            self._systemctl("restart", f"{self._name}.timer")

    def _take_back(self, before: Mapping[Path, str | None]) -> None:
        """The units as they were before systemd refused: a login later would start what nobody was told of."""
        can_be_asked = shutil.which("systemctl") is not None
        for path, text in before.items():
            if text is not None:
                write_atomically(path, text)
                continue
            if can_be_asked and path != self._file("service"):  # which nobody enables
                _ended(["systemctl", "--user", "disable", "--now", path.name])
            path.unlink(missing_ok=True)
        if can_be_asked:
            _ended(["systemctl", "--user", "daemon-reload"])

    def pause(self, *, paused: bool) -> None:
        """Stops the timer, or starts it."""
        self._systemctl(*(("disable",) if paused else ("enable",)), "--now", f"{self._name}.timer")

    def remove(self) -> str:
        """Ends and removes them; the driver cleans up."""
        self._systemctl("disable", "--now", f"{self._name}.timer")
        self._systemctl("stop", f"{self._name}.service")
        if self._receives:
            self._systemctl("disable", "--now", f"{self._name}{RECEIVER}")
            (self._folder / f"{self._name}{RECEIVER}").unlink(missing_ok=True)
        for end in ("service", "timer"):
            self._file(end).unlink(missing_ok=True)
        self._systemctl("daemon-reload")
        return REMOVED

    def state(self) -> dict[str, Any]:
        """By the files and systemd's own words."""
        if not self._file("timer").exists():
            return state_of(self._schedule, word="not there")
        active = _ended(["systemctl", "--user", "is-active", f"{self._name}.timer"]).stdout.strip()
        return state_of(self._schedule, word="waits" if active == "active" else "paused")

    def _file(self, end: str) -> Path:
        return self._folder / f"{self._name}.{end}"

    def _systemctl(self, *words: str) -> None:
        ended = _ended(["systemctl", "--user", *words])
        if ended.returncode:
            raise UserInputError(
                f"schedule {self._schedule.name}: systemd refuses.", seen=ended.stderr.strip()[:300],
                expected="a systemd of yours that runs on this machine", do="log in anew, or use place: cron",
            )  # fmt: skip


class Cron:
    """A line of the user's crontab."""

    def __init__(self, schedule: Schedule) -> None:
        if schedule.time_zone is not None:
            raise fault_at(
                schedule.path, ("timeZone",), "cron knows the machine's own time zone only.", seen=schedule.time_zone,
                expected="no timeZone", do="take the key out and write `when` in the machine's zone, or use systemd",
            )  # fmt: skip
        self._schedule = schedule

    def create(self) -> str:
        """Writes the line, or another one in its place; one that is paused stays paused."""
        schedule, paused = self._schedule, self.state()["state"] == "paused"
        schedule.folder.mkdir(parents=True, exist_ok=True)
        own = crontab.line(
            _times(schedule), command_of(schedule), schedule.path.parent, os.environ.get("PATH", os.defpath),
            schedule.folder / LOG,
        )  # fmt: skip
        self._write(crontab.PAUSED + own if paused else own)
        return (
            f"is a line of your crontab; {schedule.folder / LOG} gets what its runs say. cron starts no run that "
            "was missed while the machine was down"
        )

    def pause(self, *, paused: bool) -> None:
        """Makes a comment of the line, or a line of the comment."""
        own = crontab.line_of(self._table(), self._schedule.name)
        if own is None:
            raise UserInputError(
                f"schedule {self._schedule.name}: the crontab has no line of it.", seen="somebody has taken it out",
                expected=f"a line below '{crontab.mark(self._schedule.name)}'", do="medweave schedule create makes it anew",
            )  # fmt: skip
        own = own.removeprefix(crontab.PAUSED)
        self._write(crontab.PAUSED + own if paused else own)

    def remove(self) -> str:
        """Takes the line out, and ends a run that goes on."""
        self._write(None)
        end_the_one_before(self._schedule.folder)
        return REMOVED

    def state(self) -> dict[str, Any]:
        """By the crontab."""
        own = crontab.line_of(self._table(), self._schedule.name)
        word = "not there" if own is None else "paused" if own.startswith(crontab.PAUSED) else "waits"
        return state_of(self._schedule, word=word)

    def _table(self) -> str:
        ended = _ended(["crontab", "-l"])
        return ended.stdout if ended.returncode == 0 else ""  # there is none yet

    def _write(self, own: str | None) -> None:
        ended = _ended(["crontab", "-"], crontab.with_line(self._table(), self._schedule.name, own))
        if ended.returncode:
            raise UserInputError(
                f"schedule {self._schedule.name}: cron refuses.", seen=ended.stderr.strip()[:300],
                expected="an account that may have a crontab", do="ask the machine's administrator, or use place: systemd",
            )  # fmt: skip
