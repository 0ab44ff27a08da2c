"""What the systemd and cron backends of a schedule share."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medweave.project.schedules import Schedule
from medweave.schedule.state import lock_schedule, read_state
from medweave_core.documents.field_errors import fault_at
from medweave_core.errors import BackendMissingError

REMOVED = "is removed; runs and results stay"


def command_of(schedule: Schedule, action: str = "run") -> list[str | Path]:
    """Return the command of a firing, or of the receiver (action `receive`)."""
    return [Path(sys.executable).with_name("medweave"), "schedule", action, schedule.path]


def state_of(schedule: Schedule, *, word: str) -> dict[str, Any]:
    """Return the state of a schedule on this machine.

    Args:
        word: state of its timer: waits, paused or not there.
    """
    last = read_state(schedule.folder).last
    return {
        "state": "running" if _is_running(schedule) else word,
        "last": dataclasses.asdict(last) if last is not None else None,
    }


def _is_running(schedule: Schedule) -> bool:
    if not schedule.folder.is_dir():
        return False
    with lock_schedule(schedule.folder) as is_alone:
        return not is_alone


def times_of(schedule: Schedule) -> str:
    """Return the times of a schedule, five fields of cron.

    Raises:
        UserInputError: the schedule has no times.
    """
    if schedule.when is None:
        raise fault_at(
            schedule.path, (), "the key 'when' is missing.", seen="a schedule without times",
            expected="when: five fields, such as 0 2 * * *", do="add `when`, or start one run now with `medweave schedule run`",
        )  # fmt: skip
    return schedule.when


def run_program(words: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of the machine's scheduler, with `text` as standard input.

    Raises:
        BackendMissingError: the program is not installed.
    """
    if shutil.which(words[0]) is None:
        raise BackendMissingError(
            f"{words[0]} is not installed.", seen=f"no program {words[0]} on the PATH",
            expected="a machine with systemd (place: systemd) or cron (place: cron)", do="choose the other place",
        )  # fmt: skip
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False)
