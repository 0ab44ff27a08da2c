"""What a job prints, wherever it runs: progress and notices go into the run's record, the last other lines are kept."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.record.causes import cause, step_message
from medweave_connectors.record.job import CommandOutcome
from medweave_connectors.record.registry import current
from medweave_steps.contracts.progress import JSON_PREFIX

NOTICE_MARK = ": note: "
TAIL_LINES = 60
LINE_BYTES = 16 * 1024


class Lines:
    """Splits bytes that come in pieces into lines; progress bars that end a line with a carriage return count too."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line, self._rest = on_line, bytearray()

    def feed(self, data: bytes) -> None:
        """The next bytes, cut anywhere."""
        self._rest += data.replace(b"\r", b"\n")
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._rest) > LINE_BYTES:
            self._emit(self._rest)
            self._rest = bytearray()

    def close(self) -> None:
        """No more bytes come: a last line without an end is a line."""
        self._emit(self._rest)
        self._rest = bytearray()

    def _emit(self, line: bytes | bytearray) -> None:
        if line.strip():
            self._on_line(line[:LINE_BYTES].decode(errors="replace").rstrip())


def take_line(job_name: str, line: str) -> bool:
    """Passes progress and notices of a medweave step on, True; any other line to those who follow the job, False."""
    run = current()
    if line.startswith(JSON_PREFIX):
        try:
            figures = json.loads(line.removeprefix(JSON_PREFIX))
            if run is not None:
                run.job_progress(job_name, figures)
        except (ValueError, TypeError, AttributeError):
            return False  # not ours after all
        return True
    if run is not None and NOTICE_MARK in line[:40]:
        run.job_notice(job_name, line.partition(NOTICE_MARK)[2])
        return True
    if run is not None:
        run.job_said(job_name, line)
    return False


class JobOutput:
    """Standard error and output of one job on another machine, as they arrive."""

    def __init__(self, job_name: str) -> None:
        self.job_name = job_name
        self.stderr_tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.stdout_tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stderr, self._stdout = Lines(self._take_stderr), Lines(self.stdout_tail.append)

    def stderr(self, data: bytes) -> None:
        """The next bytes of standard error."""
        self._stderr.feed(data)

    def stdout(self, data: bytes) -> None:
        """The next bytes of standard output."""
        self._stdout.feed(data)

    def tell_instead(self, stderr: bytes) -> None:
        """The cause stands in another stream: of another node, for one. Its progress has no place any more."""
        self.stderr_tail.clear()
        self._stderr = Lines(self._take_stderr)  # half a line of the first stream is no last line of the other
        lines = Lines(lambda line: None if line.startswith(JSON_PREFIX) else self.stderr_tail.append(line))
        lines.feed(stderr)
        lines.close()

    def close(self) -> None:
        """All has arrived."""
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
        """How the job ended, with the cause in its own words.

        Args:
            exit_code: 0 only where the site itself says that the job did well.
            seconds, cpu_seconds, peak_memory_mib: what it cost, as the site tells; None where it does not.
            site_word: what the site says about a failure (`Slurm job 17 hit its time limit …`); comes first.
            kept_at: where its files lie, for people: `hpc:/scratch/me/…`.
            report_folder: a folder on this machine with copies of its reports.
            site: the site's own facts for the event log (its job id, the nodes).
        """
        why = message = ""
        if exit_code:
            own = cause(list(self.stderr_tail), list(self.stdout_tail), exit_code)
            said = bool(self.stderr_tail or self.stdout_tail)
            why = "\n".join(part for part in (site_word, own if said or not site_word else "") if part)
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
        if not take_line(self.job_name, line):
            self.stderr_tail.append(line)
