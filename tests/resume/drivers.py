"""Drivers as users start them, in separate process groups; one is killed right after an event of its run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from medweave_core.runlog.history import LOG_FILE
from resume.verdict import UNCOUNTED
from support.engine import wait_until
from support.processes import alive

BIN = Path(sys.executable).parent
TIME_LIMIT_S, LOOK_S = 600.0, 0.001
Event = dict[str, Any]


class Driver:
    """`streamflow run`, or `medweave run`, of one bound file."""

    def __init__(self, bound: Path, environment: Mapping[str, str], *, resumes: Path | None = None) -> None:
        """Start the driver.

        Args:
            resumes: the run that `medweave run --resume` resumes; None for plain `streamflow run`.
        """
        self.folder = bound.parent
        self._before = set(logs_of(self.folder))
        words = ["streamflow", "run", "--quiet", bound.name] if resumes is None else [
            "medweave", "run", "--resume", str(resumes), "--file", bound.name
        ]  # fmt: skip
        with (self.folder / "driver.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [str(BIN / words[0]), *words[1:], "--outdir", "results"],
                cwd=self.folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill_after(self, is_it: Callable[[Event], bool]) -> Event | None:
        """Kill its process group with SIGKILL after the first matching event; return None if it ended before."""
        deadline, seen = time.monotonic() + TIME_LIMIT_S, 0
        while self._process.poll() is None and time.monotonic() < deadline:
            events = self.events()
            for event in events[seen:]:
                if is_it(event):
                    self.kill()
                    return event
            seen = len(events)
            time.sleep(LOOK_S)
        self.kill()
        return None

    def kill(self) -> None:
        """Kill all of its processes; under `medweave run` the engine has a separate process group."""
        engines = {event["data"]["pid"] for event in self.events()[:1]}
        for process_id in {*engines, self._process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process_id, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not any(map(alive, engines)))

    def wait(self) -> int:
        """Return its exit code; kill it after a time limit."""
        try:
            return self._process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    @property
    def run(self) -> Path | None:
        """Return the folder of its run, or None before it begins."""
        new = [log.parent for log in logs_of(self.folder) if log not in self._before]
        return new[0] if new else None

    def events(self) -> list[Event]:
        """Return the events of its log, without an incomplete last line."""
        return [] if self.run is None else events_of(self.run)


def nth(number: int) -> Callable[[Event], bool]:
    """Return a test for the event with this number, from 1, of the events that every run has."""
    seen = 0

    def is_it(event: Event) -> bool:
        nonlocal seen
        seen += event["type"] not in UNCOUNTED
        return seen >= number

    return is_it


def nth_progress(number: int, step: str) -> Callable[[Event], bool]:
    """Return a test for the progress event of a step with this number, from 1."""
    seen = 0

    def is_it(event: Event) -> bool:
        nonlocal seen
        seen += event["type"] == "job.progress" and event["step"] == step
        return seen >= number

    return is_it


def logs_of(folder: Path) -> list[Path]:
    """Return the event logs of a folder's runs."""
    return sorted((folder / "runs").glob(f"*/{LOG_FILE}"))


def events_of(run: Path) -> list[Event]:
    """Return the events of a run."""
    text = (run / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    return [json.loads(line) for line in text.split("\n")[:-1]]
