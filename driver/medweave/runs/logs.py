"""`medweave logs STEP`: print the output of a step's jobs, while they run and afterwards."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from medweave.runs.follow.formatting import end_of
from medweave.runs.listing import add_runs_option, find_run, state_of
from medweave_core.contracts.events import Event, step_label
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import LOG_FILE
from medweave_core.runlog.log_reader import FollowedLog
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_folder import STDERR, WORK
from medweave_core.runlog.run_state import ENDED, JobProgress, RunState, fold

PAUSE_S = 0.3
PRINTED_EVENTS = ("job.progress", "notice", "job.reaction")
DESCRIPTION = """\
Print the standard error of the jobs of a step. The jobs of a scattered step follow one another.

medweave stores the output in runs/<run-id>/work/stderr. A successful run and `medweave clean` remove it. After
that, the command prints the progress events and notices of the event log.

The output may identify patients. Read it before you share it."""
EPILOG = """\
examples:
  medweave logs train --follow
  medweave logs segment.3 --run lung-20260827-101500-3f2a

exit codes:
  0    output printed
  2    wrong usage
  65   no such run or step
  130  interrupted by Ctrl-C"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave logs`."""
    parser.add_argument("step", metavar="STEP", help="step, or one job of a scattered step (segment.3)")
    parser.add_argument("--run", default=None, metavar="ID", help="run id or run folder (default: the latest run)")
    parser.add_argument("--follow", action="store_true", help="follow the output until the jobs of the step have ended")
    add_runs_option(parser)


def run(namespace: argparse.Namespace) -> int:
    """Print the output of the step's jobs; follow it with --follow."""
    folder = find_run(namespace.runs, namespace.run)
    step = step_label(namespace.step)
    state = state_of(folder)
    jobs = jobs_of(state, step)
    if not jobs and not (namespace.follow and step in state.planned):
        known = list(dict.fromkeys(name for job in state.jobs.values() for name in (step_label(job.step), job.label)))
        raise UserInputError(
            f"run {folder.name} has no job of step '{step}'.",
            seen=f"'{step}'",
            expected=f"one of {', '.join(known)}" if known else "a run whose first step has started",
            do=closest(step, known) or "choose a listed step",
        )
    with contextlib.ExitStack() as opened:
        _print(folder, step, opened, follow=namespace.follow)
    return 0


def _print(folder: Path, step: str, opened: contextlib.ExitStack, *, follow: bool) -> None:
    log, state = FollowedLog(folder / LOG_FILE), RunState()
    files, summarized, printed = dict[str, OutputReader](), set[str](), dict[str, list[Event]]()
    while True:
        driver_has_exited = not driver_lives(folder / LOG_FILE)  # checked first, so that its last lines are read below
        for _, event in log.new():
            if event is not None:
                fold(state, event)
                if event.type in PRINTED_EVENTS and event.job is not None:
                    printed.setdefault(event.job, []).append(event)
        jobs = jobs_of(state, step)
        for job in jobs:
            if job.label not in files:
                files[job.label] = opened.enter_context(OutputReader(folder / WORK / STDERR / job.label))
            text = files[job.label].new()
            if job.state in ENDED:  # of thousands of jobs only the running ones keep a file open
                files[job.label].close()
            if not files[job.label].has_output and job.state in ENDED and job.label not in summarized:
                summarized.add(job.label)
                text = "".join(f"{line}\n" for line in logged_lines(job, printed.get(job.name, ())))
            if text:
                sys.stdout.write((f"== {job.label}\n" if len(jobs) > 1 else "") + text)
                sys.stdout.flush()
        if not follow or driver_has_exited or (jobs and all(job.state in ENDED for job in jobs)):
            return
        time.sleep(PAUSE_S)


def jobs_of(state: RunState, step: str) -> list[JobProgress]:
    """Return the jobs of a step, or the one job with that label."""
    return [job for job in state.jobs.values() if step in (step_label(job.step), job.label)]


def logged_lines(job: JobProgress, events: Iterable[Event]) -> Iterator[str]:
    """Yield what the event log has of a job, for a run whose scratch is removed: progress, notices and final state.

    Args:
        events: those of the job that are printed.
    """
    for event in events:
        yield f"{'' if event.type == 'job.progress' else 'note: '}{event.data.get('text', '')}"
    yield from job.message.splitlines()
    if job.state in ENDED:
        yield end_of(job)


class OutputReader:
    """Reader of a job's output that continues where it stopped, across a rotation of the file and until the end of a removed one.

    Args:
        path: file of the job in the scratch (`medweave_connectors.runlog.job_output_files`).
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._has_output = path, 0, False
        self._stream: BinaryIO | None = None

    def __enter__(self) -> OutputReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; `new` opens it again."""
        if self._stream is not None:
            self._offset = self._stream.tell()
            self._stream.close()
            self._stream = None

    @property
    def has_output(self) -> bool:
        """Return whether the job's file exists, so that the job has printed something."""
        return self._has_output

    def new(self) -> str:
        """Return the text that was written since the last call."""
        text = b""
        with contextlib.suppress(FileNotFoundError):
            if self._stream is None:
                earlier = self._path.with_name(f"{self._path.name}.1")
                text = earlier.read_bytes() if not self._has_output and earlier.exists() else b""
                self._stream = self._path.open("rb")
                is_same = os.fstat(self._stream.fileno()).st_size >= self._offset
                self._stream.seek(self._offset if is_same else 0)
                self._has_output = True
            elif not os.path.samestat(os.fstat(self._stream.fileno()), self._path.stat()):
                newer = self._path.open("rb")
                text = self._stream.read()
                self._stream.close()
                self._stream = newer
        return (text + (self._stream.read() if self._stream is not None else b"")).decode(errors="replace")
