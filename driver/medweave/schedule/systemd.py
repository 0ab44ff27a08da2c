"""A schedule as units of the user's systemd: a timer, a service and, for a receiver, a second service."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.project.cron_times import on_calendar
from medweave.project.files import write_atomically
from medweave.project.schedules import Schedule
from medweave.schedule.local_timer import REMOVED, command_of, run_program, state_of, times_of
from medweave_core.documents.field_errors import fault_at
from medweave_core.errors import StepError, UserInputError

RECEIVER = "-receive.service"
CLEAN_UP_S = 120  # for the driver to cancel its jobs and remove its files


class Systemd:
    """Backend of one schedule: a timer and a service of the user's systemd."""

    def __init__(self, schedule: Schedule) -> None:
        if schedule.overlap != "forbid":
            raise fault_at(
                schedule.path, ("overlap",), "systemd cannot run a schedule twice at the same time.", seen=schedule.overlap,
                expected="forbid",
                do="remove `overlap`, or use cron or kubernetes",
            )  # fmt: skip
        self._schedule, self._name = schedule, unit_name(schedule.name)
        configured = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
        self._folder = Path(configured) / "systemd" / "user"

    @property
    def _receives(self) -> bool:
        return "receive" in (self._schedule.watch or {})

    def create(self) -> str:
        """Write the units and start the timer; a paused one stays paused."""
        was_paused = self.state()["state"] == "paused"
        texts = self._units()
        before = {path: path.read_text(encoding="utf-8") if path.is_file() else None for path in texts}
        try:
            for path, text in texts.items():
                write_atomically(path, text)
            self._start(was_paused=was_paused)
        except StepError:
            self._restore(before)
            raise
        return (
            f"is {self._name}.timer; `journalctl --user -u {self._name}` shows the output of its runs, and "
            "`loginctl enable-linger` lets it run while you are logged out"
        )

    def _units(self) -> dict[Path, str]:
        schedule, search = self._schedule, os.environ.get("PATH", os.defpath)
        times, folder = on_calendar(times_of(schedule), schedule.time_zone), schedule.path.parent
        texts = {self._file("service"): service(schedule.name, command_of(schedule), folder, search)}
        if self._receives:
            listens = receiver(schedule.name, command_of(schedule, "receive"), folder, search)
            texts[self._folder / f"{self._name}{RECEIVER}"] = listens
        texts[self._file("timer")] = timer(schedule.name, times, catches_up=schedule.start_within_s > 0)
        return texts

    def _start(self, *, was_paused: bool) -> None:
        self._systemctl("daemon-reload")
        if self._receives:  # also while it is paused: a sender may not send again
            self._systemctl("enable", f"{self._name}{RECEIVER}")
            self._systemctl("restart", f"{self._name}{RECEIVER}")
        if not was_paused:
            self._systemctl("enable", f"{self._name}.timer")
            self._systemctl("restart", f"{self._name}.timer")

    def _restore(self, before: Mapping[Path, str | None]) -> None:
        """Restore the previous units after systemd refused; else the next login would start the new ones."""
        has_systemctl = shutil.which("systemctl") is not None
        for path, text in before.items():
            if text is not None:
                write_atomically(path, text)
                continue
            if has_systemctl and path != self._file("service"):  # the service is never enabled
                run_program(["systemctl", "--user", "disable", "--now", path.name])
            path.unlink(missing_ok=True)
        if has_systemctl:
            run_program(["systemctl", "--user", "daemon-reload"])

    def pause(self, *, paused: bool) -> None:
        """Stop the timer, or start it."""
        self._systemctl(*(("disable",) if paused else ("enable",)), "--now", f"{self._name}.timer")

    def remove(self) -> str:
        """Stop and remove the units; a running driver cleans up."""
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
        """Return the state by the unit files and `systemctl is-active`."""
        if not self._file("timer").exists():
            return state_of(self._schedule, word="not found")
        active = run_program(["systemctl", "--user", "is-active", f"{self._name}.timer"]).stdout.strip()
        return state_of(self._schedule, word="waits" if active == "active" else "paused")

    def _file(self, end: str) -> Path:
        return self._folder / f"{self._name}.{end}"

    def _systemctl(self, *words: str) -> None:
        process = run_program(["systemctl", "--user", *words])
        if process.returncode:
            raise UserInputError(
                f"schedule {self._schedule.name}: systemd refused the change.", seen=process.stderr.strip()[:300],
                expected="a running systemd user instance", do="log in again, or use place: cron",
            )  # fmt: skip


# ---- pure


def unit_name(schedule: str) -> str:
    """Return the name of the units without their suffixes."""
    return f"medweave-{schedule}"


def service(schedule: str, words: Sequence[str | Path], folder: Path, search: str) -> str:
    """Return the text of the service that the timer starts.

    Args:
        words: words of the command.
        folder: its working directory.
        search: PATH of the user who creates it, on which ssh, kubectl and helm are found.
    """
    command = " ".join(
        quoted(str(word)) for word in ("/usr/bin/env", *words)
    )  # ExecStart accepts no program path with a quote in it
    return f"""\
[Unit]
Description=medweave: one firing of the schedule {schedule}

[Service]
Type=oneshot
WorkingDirectory={specifiers_off(str(folder))}
Environment={quoted(f"PATH={search}")}
ExecStart={command}
# TERM goes to the driver alone, which cancels its jobs.
KillMode=mixed
TimeoutStopSec={CLEAN_UP_S}
"""


def receiver(schedule: str, words: Sequence[str | Path], folder: Path, search: str) -> str:
    """Return the text of the service that receives from a DICOM node; arguments as of `service`."""
    command = " ".join(quoted(str(word)) for word in ("/usr/bin/env", *words))
    return f"""\
[Unit]
Description=medweave: takes what a DICOM node sends to the schedule {schedule}

[Service]
WorkingDirectory={specifiers_off(str(folder))}
Environment={quoted(f"PATH={search}")}
ExecStart={command}
Restart=on-failure
RestartSec=10

[Install]
WantedBy=default.target
"""


def timer(schedule: str, times: Sequence[str], *, catches_up: bool) -> str:
    """Return the text of the timer.

    Args:
        times: values of `OnCalendar=`.
        catches_up: whether a missed firing starts when the machine is up again.
    """
    lines = "\n".join(f"OnCalendar={time}" for time in times)
    return f"""\
[Unit]
Description=medweave: times of the schedule {schedule}

[Timer]
{lines}
AccuracySec=1s
Persistent={"true" if catches_up else "false"}

[Install]
WantedBy=timers.target
"""


def specifiers_off(text: str) -> str:
    """Return a text with systemd's specifiers escaped."""
    return text.replace("%", "%%")


def quoted(word: str) -> str:
    """Return a word quoted for systemd: variables, specifiers and blanks are escaped."""
    text = specifiers_off(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"' if set(text) & set(" \t\"';") else text
