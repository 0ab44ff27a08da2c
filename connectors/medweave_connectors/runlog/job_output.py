"""Output of a job at any site: progress and notices go into the run record, the last other lines stay for its outcome.

A job can print anything: a line that cannot be parsed is an ordinary line, and never fails the job or its watcher.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.host.token_bucket import TokenBucket
from medweave_connectors.runlog.current_run import current
from medweave_connectors.runlog.job import CommandOutcome
from medweave_core.contracts.progress import JSON_PREFIX, sentence
from medweave_core.runlog.causes import cause, step_message
from medweave_core.untrusted_text import load_json, plain, plain_line

NOTICE_MARK = ": note: "
TAIL_LINES = 60
LINE_BYTES = 16 * 1024
MOST_SECONDS = 10 * 365 * 86400.0  # of the time that a step says is left
MOST_NOTICES = 200  # of one job
EVENT_BURST, EVENTS_PER_S = 200.0, 10.0  # progress events of one job: a job may print millions of lines


class LineSplitter:
    """Splits chunks of bytes into lines; a carriage return, as of progress bars, ends a line too."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line, self._rest = on_line, bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._rest += data.replace(b"\r", b"\n")
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._rest) > LINE_BYTES:
            self._emit(self._rest)
            self._rest = bytearray()

    def close(self) -> None:
        """Emit a last line that has no line end."""
        self._emit(self._rest)
        self._rest = bytearray()

    def _emit(self, line: bytes | bytearray) -> None:
        if line.strip():
            self._on_line(plain(line[:LINE_BYTES].decode(errors="replace")).rstrip())


def parse_progress(line: str) -> dict[str, Any] | None:
    """Return the figures of a progress line of a medweave step; None for any other line.

    `done` and `total` are whole numbers of at least 0, `seconds_left` is finite, `unit` and `detail` are short plain text, and
    `text` is the line for people. Further figures stay as they are, without numbers that are not finite.
    """
    try:
        figures = load_json(line.removeprefix(JSON_PREFIX)) if line.startswith(JSON_PREFIX) else None
    except ValueError:
        return None
    if not isinstance(figures, dict):
        return None
    done, total, seconds_left = figures.get("done"), figures.get("total"), figures.get("seconds_left")
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in (done, total)):
        return None
    if isinstance(seconds_left, bool) or not isinstance(seconds_left, int | float):
        seconds_left = 0.0
    known: dict[str, Any] = {
        "unit": plain_line(str(figures.get("unit", "unit")), most=40),
        "done": done,
        "total": total,
        "seconds_left": min(max(seconds_left, 0.0), MOST_SECONDS),
        "detail": plain_line(str(figures.get("detail", "")), most=400),
    }
    return {**figures, **known, "text": sentence(**known)}


class EventRate:
    """Limits the events that the lines of one job may cause."""

    def __init__(self) -> None:
        self._notices, self._progress = 0, TokenBucket(EVENT_BURST, EVENTS_PER_S)

    def takes_progress(self) -> bool:
        """Return whether one more progress event may be recorded now."""
        return self._progress.take(time.monotonic())

    def takes_notice(self) -> bool:
        """Return whether one more notice may be recorded."""
        self._notices += 1
        return self._notices <= MOST_NOTICES


def take_line(job_name: str, line: str, rate: EventRate) -> bool:
    """Record the progress or the notice in one line of a job; False for any other line, which followers of the job can read.

    Args:
        rate: of this job; what exceeds it is read, and not recorded.
    """
    run = current()
    if (figures := parse_progress(line)) is not None:
        if run is not None and rate.takes_progress():
            run.job_progress(job_name, figures)
        return True
    if run is not None and NOTICE_MARK in line[:40]:
        if rate.takes_notice():
            run.job_notice(job_name, plain_line(line.partition(NOTICE_MARK)[2]))
        return True
    if run is not None:
        run.job_line(job_name, line)
    return False


class JobOutput:
    """Standard error and output of one job on another machine, as they arrive."""

    def __init__(self, job_name: str) -> None:
        self.job_name = job_name
        self.stderr_tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.stdout_tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stderr, self._stdout = LineSplitter(self._take_stderr), LineSplitter(self.stdout_tail.append)
        self._rate = EventRate()

    def stderr(self, data: bytes) -> None:
        """Take the next bytes of standard error."""
        self._stderr.feed(data)

    def stdout(self, data: bytes) -> None:
        """Take the next bytes of standard output."""
        self._stdout.feed(data)

    def use_stderr_of(self, stderr: bytes) -> None:
        """Replace the tail by that of another stream with the cause, such as another node's; its progress events are dropped."""
        self.stderr_tail.clear()
        self._stderr = LineSplitter(self._take_stderr)  # drop an incomplete line of the first stream
        lines = LineSplitter(lambda line: None if line.startswith(JSON_PREFIX) else self.stderr_tail.append(line))
        lines.feed(stderr)
        lines.close()

    def close(self) -> None:
        """Emit the last lines."""
        self._stderr.close()
        self._stdout.close()

    def outcome(
        self,
        *,
        exit_code: int,
        seconds: float,
        cpu_seconds: float | None = None,
        peak_memory_mib: float | None = None,
        site_word: str = "",
        kept_at: str = "",
        report_folder: Path | None = None,
        site: Mapping[str, Any] | None = None,
    ) -> CommandOutcome:
        """Return the outcome of the job, with the cause from its output.

        Args:
            exit_code: 0 only if the site reports a success.
            seconds, cpu_seconds, peak_memory_mib: cost as reported by the site; None if unknown.
            site_word: the site's message about a failure (`Slurm job 17 hit its time limit …`); comes first.
            kept_at: where its files are, for the user: `hpc:/scratch/me/…`.
            report_folder: a folder on this machine with copies of its reports.
            site: facts of the site for the event log (its job id, the nodes).
        """
        why = message = ""
        if exit_code:
            own = cause(list(self.stderr_tail), list(self.stdout_tail), exit_code)
            has_output = bool(self.stderr_tail or self.stdout_tail)
            why = "\n".join(part for part in (site_word, own if has_output or not site_word else "") if part)
            message = "\n".join(part for part in (site_word, step_message(list(self.stderr_tail))) if part)
        return CommandOutcome(
            exit_code=exit_code,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            peak_memory_mib=peak_memory_mib,
            cause=why,
            message=message,
            kept_at=kept_at,
            report_folder=report_folder,
            site=site or {},
        )

    def _take_stderr(self, line: str) -> None:
        if not take_line(self.job_name, line, self._rate):
            self.stderr_tail.append(line)
