"""The stored state of a schedule, in its folder: inputs of the last completed run, and the last firing."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave.project.files import write_atomically
from medweave_connectors.host.secret_file import made_once

FILE, LOCK, SECRET, DIGESTS = "memory.json", "lock", "secret", "digests.sqlite"
ASK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """One firing of a schedule.

    Attributes:
        moment: ISO 8601, with the offset from UTC.
        outcome: completed, partial, failed, cancelled or unknown, as of runs; or skipped.
        why: reason in words, if it did not run.
        run: id of the run; empty without one.
        seconds: wall time, s.
    """

    moment: str
    outcome: str
    why: str = ""
    run: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """The state of a schedule.

    Attributes:
        parts: keyed digests of the inputs of the last completed run; empty before the first one.
        done: firing of that run.
        last: the last firing, with any outcome.
        tries: number of failed runs of each study, by its keyed digest; 0 after a completed run.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    done: Firing | None = None
    last: Firing | None = None
    tries: Mapping[str, int] = field(default_factory=dict)


def read_state(folder: Path) -> ScheduleState:
    """Return the stored state; an empty one if it is missing or unreadable, so that the next run is not skipped."""
    try:
        document: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        firings = {key: Firing(**document[key]) for key in ("done", "last") if document.get(key)}
        return ScheduleState(parts=document.get("parts") or {}, tries=document.get("tries") or {}, **firings)
    except (OSError, ValueError, TypeError, AttributeError):
        return ScheduleState()


def write_state(folder: Path, state: ScheduleState) -> None:
    """Replace the stored state atomically."""
    write_atomically(folder / FILE, json.dumps(dataclasses.asdict(state), indent=2) + "\n")


def secret_of(folder: Path) -> bytes:
    """Return the secret of the digests, created at the first call."""
    return made_once(folder / SECRET)


@contextlib.contextmanager
def lock_schedule(folder: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Lock the schedule; yield False if another firing has the lock. The kernel releases the lock of a dead process.

    Args:
        wait_s: how long to wait for the lock, s.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _locked(descriptor, time.monotonic() + wait_s)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(ASK_S)
        else:
            return True
