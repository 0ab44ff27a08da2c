"""`medweave logs STEP`: what the jobs of a step print, while they run and afterwards."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from medweave_core.runlog.log_reader import FollowedLog
from medweave.runs.follow.printed_output import Printed
from medweave_core.runlog.run_state import ENDED, Job, State, fold
from medweave.runs.follow.formatting import end_of
from medweave_core.runlog.history import LOG_FILE, read_log
from medweave.runs.listing import add_runs_option, find, state_of
from medweave_core.documents.closest_match import closest
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_folder import STDERR
from medweave_core.runlog.run_folder import WORK
from medweave_core.errors import UserInputError
from medweave_core.contracts.events import step_label

PAUSE_S = 0.3
TOLD = ("job.progress", "notice", "job.reaction")
DESCRIPTION = (
    "Prints what the jobs of a step have printed on standard error, those of a scattered step one after the other. It is kept in\n"
    "the run's scratch (runs/<run-id>/work/stderr), which is removed after a success and by `medweave clean`; then their progress\n"
    "and notices, which stay in the event log, are printed. What programs print may tell of patients: look before you share it.\n\n"
    "exit codes: 0, 2 wrong usage, 65 there is no such run or step, 130 after Ctrl-C"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave logs`."""
    parser.add_argument("step", metavar="STEP", help="a step (segment), or one job of a scattered step (segment.3)")
    parser.add_argument("--run", default=None, metavar="ID", help="id of the run, or its folder (default: the latest)")
    parser.add_argument("--follow", action="store_true", help="print on as long as the step's jobs go on")
    add_runs_option(parser)


def run(namespace: argparse.Namespace) -> int:
    """Prints, and follows where that is asked for."""
    folder = find(namespace.runs, namespace.run)
    step = step_label(namespace.step)
    state = state_of(folder)
    jobs = jobs_of(state, step)
    if not jobs and not (namespace.follow and step in state.planned):
        known = list(dict.fromkeys(name for job in state.jobs.values() for name in (step_label(job.step), job.label)))
        raise UserInputError(
            f"the run {folder.name} has done nothing for a step '{step}'.",
            seen=f"'{step}'",
            expected=f"one of {', '.join(known)}" if known else "a run that has begun with a step",
            do=closest(step, known) or "choose one of these",
        )
    with contextlib.ExitStack() as opened:
        _print(folder, step, opened, follow=namespace.follow)
    return 0


def _print(folder: Path, step: str, opened: contextlib.ExitStack, *, follow: bool) -> None:
    log, state = FollowedLog(folder / LOG_FILE), State()
    files, told = dict[str, Printed](), set[str]()
    while True:
        gone = not driver_lives(folder / LOG_FILE)  # asked first: what was written before is read after that
        for _, event in log.new():
            if event is not None:
                fold(state, event)
        jobs = jobs_of(state, step)
        for job in jobs:
            if job.label not in files:
                files[job.label] = opened.enter_context(Printed(folder / WORK / STDERR / job.label))
            text = files[job.label].new()
            if not files[job.label].begun and job.state in ENDED and job.label not in told:
                told.add(job.label)
                text = "".join(f"{line}\n" for line in kept(folder, job))
            if text:
                sys.stdout.write((f"== {job.label}\n" if len(jobs) > 1 else "") + text)
                sys.stdout.flush()
        if not follow or gone or (jobs and all(job.state in ENDED for job in jobs)):
            return
        time.sleep(PAUSE_S)


def jobs_of(state: State, step: str) -> list[Job]:
    """The jobs of a step, or the one of that name."""
    return [job for job in state.jobs.values() if step in (step_label(job.step), job.label)]


def kept(folder: Path, job: Job) -> Iterator[str]:
    """What stays of a job when its scratch is gone: the lines of its progress and notices, and how it ended."""
    for event in read_log(folder / LOG_FILE):
        if event.job == job.name and event.type in TOLD:
            yield f"{'' if event.type == 'job.progress' else 'note: '}{event.data.get('text', '')}"
    yield from job.message.splitlines()
    if job.state in ENDED:
        yield end_of(job)
