"""`medweave logs STEP`: what the jobs of a step print, while they run and afterwards."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from medweave.documents import shown
from medweave.follow.state import ENDED, Job, State
from medweave.follow.words import end_of
from medweave.history import LOG_FILE, read_events
from medweave.ps import add_runs_option, folders_of, state_of
from medweave_connectors.closest import closest
from medweave_connectors.names import step_label
from medweave_connectors.record.event_log import driver_lives
from medweave_connectors.record.live import FOLDER
from medweave_connectors.record.run import WORK
from medweave_steps.contracts.errors import UserInputError

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
    parser.add_argument("--run", default=None, metavar="ID", help="id of the run (default: the latest)")
    parser.add_argument("--follow", action="store_true", help="print on as long as the step's jobs go on")
    add_runs_option(parser)


def run(namespace: argparse.Namespace) -> int:
    """Prints, and follows where that is asked for."""
    folder = _folder(namespace.runs, namespace.run)
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
    offsets: dict[str, int] = {}
    while True:
        over = _is_over(folder, jobs)  # asked first: what they have printed is read after that
        for job in jobs:
            _print_new(folder, job, offsets, several=len(jobs) > 1)
        if not namespace.follow or over:
            break
        time.sleep(PAUSE_S)
        jobs = jobs_of(state_of(folder), step)
    return 0


def jobs_of(state: State, step: str) -> list[Job]:
    """The jobs of a step, or the one of that name."""
    return [job for job in state.jobs.values() if step in (step_label(job.step), job.label)]


def kept(folder: Path, job: Job) -> Iterator[str]:
    """What stays of a job when its scratch is gone: the lines of its progress and notices, and how it ended."""
    for event in read_events((folder / LOG_FILE).read_text(encoding="utf-8")):
        if event.job == job.name and event.type in TOLD:
            yield f"{'' if event.type == 'job.progress' else 'note: '}{event.data.get('text', '')}"
    yield from job.message.splitlines()
    if job.state in ENDED:
        yield end_of(job)


def _folder(runs: Path, run_id: str | None) -> Path:
    folders = folders_of(runs)
    found = [folder for folder in folders if run_id in (None, folder.name)]
    if not found:
        raise UserInputError(
            f"there is no run '{run_id}'." if run_id else "there is no run.",
            seen=", ".join(folder.name for folder in folders[:5]) or f"nothing in {shown(runs)}",
            expected="the id of a run, as `medweave ps` lists them",
            do=closest(str(run_id), [folder.name for folder in folders]) or "look with `medweave ps`",
        )
    return found[0]


def _is_over(folder: Path, jobs: list[Job]) -> bool:
    return (bool(jobs) and all(job.state in ENDED for job in jobs)) or not driver_lives(folder / LOG_FILE)


def _print_new(folder: Path, job: Job, offsets: dict[str, int], *, several: bool) -> None:
    """What a job has printed since the last time; a file that has been full begins anew."""
    path = folder / WORK / FOLDER / job.label
    text, begun = "", job.label in offsets
    try:
        if not begun and (earlier := path.with_name(f"{path.name}.1")).exists():
            text = earlier.read_text(encoding="utf-8", errors="replace")
        with path.open("rb") as stream:
            offset = offsets.get(job.label, 0)
            stream.seek(0 if stream.seek(0, 2) < offset else offset)
            text += stream.read().decode(errors="replace")
            offsets[job.label] = stream.tell()
    except OSError:
        if begun or job.state not in ENDED:
            return
        text = "".join(f"{line}\n" for line in kept(folder, job))
        offsets[job.label] = 0
    if text:
        sys.stdout.write((f"== {job.label}\n" if several else "") + text)
        sys.stdout.flush()
