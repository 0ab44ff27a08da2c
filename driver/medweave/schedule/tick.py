"""One firing of a schedule: check for another firing and for changes, run, store the state and notify."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from medweave.project.console import put
from medweave.project.schedules import Schedule
from medweave.runs import run as runs
from medweave.runs.cancel import has_open
from medweave.runs.follow.engine_process import workflow_of
from medweave.schedule.inputs import UnreadableInputError, changes, parts_of
from medweave.schedule.notifications import is_wanted, notice_of, send
from medweave.schedule.state import (
    DIGESTS,
    LOCK,
    Firing,
    ScheduleState,
    lock_schedule,
    read_state,
    secret_of,
    write_state,
)
from medweave.schedule.studies import Study, after
from medweave.schedule.watching import StudyWatch, why_none
from medweave_connectors.cache.content import Contents
from medweave_connectors.cache.database import CacheDatabase
from medweave_core.contracts.progress import duration
from medweave_core.errors import StepError
from medweave_core.runlog.history import LOG_FILE, read_run
from medweave_core.runlog.run_ownership import new_run_id

RUNS, RESULTS = "runs", "results"
REPLACED_WITHIN_S = 600.0
GLANCE_S = 1.0  # `medweave schedule list` takes the lock for a moment
ALL_DONE = "completed"


def fire(schedule: Schedule, folder: Path) -> int:
    """Run the schedule once, if there is anything to do.

    Args:
        folder: folder of the schedule.

    Returns:
        The exit code of the run; 0 if there was nothing to do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if schedule.overlap == "allow":
        return _fire_locked(schedule, folder)
    if schedule.overlap == "replace":
        cancel_previous(folder)
    with lock_schedule(folder, REPLACED_WITHIN_S if schedule.overlap == "replace" else GLANCE_S) as is_alone:
        if not is_alone:
            say(schedule, "skipped: the previous run is still running")
            return 0
        (folder / LOCK).write_text(f"{os.getpid()}\n", encoding="utf-8")
        return _fire_locked(schedule, folder)


def say(schedule: Schedule, text: str) -> None:
    """Write a line to the log of the Job or unit."""
    put(f"medweave: schedule {schedule.name}: {text}", sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DueWork:
    """Whether a run is due, and its inputs.

    Attributes:
        why: in words, why a run is due or not.
        parts: digests of the run's inputs.
        studies: studies of the run, by their keys.
        finish: called after the run has completed.
    """

    is_due: bool
    why: str
    parts: Mapping[str, str] = field(default_factory=dict)
    studies: Mapping[str, Study] = field(default_factory=dict)
    finish: Callable[[], None] = lambda: None


def _fire_locked(schedule: Schedule, folder: Path) -> int:
    state, began, clock = read_state(folder), _now(), time.monotonic()
    try:
        work = _due_work(schedule, folder, state)
        if not work.is_due:
            write_state(folder, replace(state, last=Firing(moment=began, outcome="skipped", why=work.why)))
            say(schedule, f"skipped: {work.why}")
            return 0
        say(schedule, f"starting a run: {work.why}")
        run_id = new_run_id(workflow_of(schedule.file))
        code = _run(schedule, folder, run_id)
    except StepError:
        firing = Firing(moment=began, outcome="failed", why="the run could not start")
        write_state(folder, replace(state, last=firing))
        _notify(schedule, firing, folder)
        raise
    outcome = _outcome(folder / RUNS / run_id)
    firing = Firing(moment=began, outcome=outcome, run=run_id, seconds=round(time.monotonic() - clock, 3))
    is_done = outcome == ALL_DONE
    if not was_ended(outcome):
        state = replace(state, tries=after(state.tries, work.studies, done=is_done))
    if is_done:
        state = replace(state, parts=work.parts, done=firing)
    write_state(folder, replace(state, last=firing))
    if is_done:
        work.finish()
    say(schedule, f"run {run_id} {outcome} after {duration(firing.seconds)}")
    _notify(schedule, firing, folder)
    return code


def _notify(schedule: Schedule, firing: Firing, folder: Path) -> None:
    """Notify the recipients of the schedule about a firing."""
    if schedule.notify is not None and is_wanted(schedule.notify["at"], firing.outcome):
        notice = notice_of(schedule.name, firing, folder / RUNS / firing.run)
        send(schedule.notify, notice, lambda text: say(schedule, text))


def was_ended(outcome: str) -> bool:
    """Return whether the run was stopped from outside, so that its outcome says nothing about its inputs."""
    return outcome in ("cancelled", "unknown", "unfinished")


def _due_work(schedule: Schedule, folder: Path, state: ScheduleState) -> _DueWork:
    contents, secret = Contents(CacheDatabase(folder / DIGESTS)), secret_of(folder)
    if schedule.watch is None:
        return _changes(schedule, state, contents, secret)
    watching = StudyWatch(schedule, folder, contents, secret)
    search = watching.find(state.tries)
    if not search.new:
        return _DueWork(is_due=False, why=why_none(search))
    watching.take_in(search.new)
    number = len(search.new)
    return _DueWork(
        is_due=True, why=f"{number} new stud{'y' if number == 1 else 'ies'}", studies=search.new,
        finish=lambda: watching.finish(search.new),
    )  # fmt: skip


def _changes(schedule: Schedule, state: ScheduleState, contents: Contents, secret: bytes) -> _DueWork:
    try:
        parts = parts_of(schedule.file, contents, secret)
    except UnreadableInputError as error:
        return _DueWork(is_due=True, why=f"input {error} cannot be compared with earlier runs")
    if not schedule.skips_unchanged:
        return _DueWork(is_due=True, why="this schedule also runs without changes", parts=parts)
    if state.done is None:
        return _DueWork(is_due=True, why="no earlier run has completed", parts=parts)
    if changed := list(changes(state.parts, parts)):
        return _DueWork(is_due=True, why=f"{', '.join(changed)} changed since run {state.done.run}", parts=parts)
    done = state.done
    return _DueWork(is_due=False, why=f"nothing has changed since run {done.run} completed ({done.moment})")


def _run(schedule: Schedule, folder: Path, run_id: str) -> int:
    options = argparse.Namespace(
        workflow=None, site=None, job=None, role=[], file=schedule.file, resume=None,
        outdir=folder / RESULTS / run_id, json=False,
    )  # fmt: skip
    options.outdir.mkdir(parents=True)
    with _variables(MEDWEAVE_RUNS_DIR=str(folder / RUNS), MEDWEAVE_RUN_ID=run_id):
        return runs.run(options, to_a_log=True)


@contextlib.contextmanager
def _variables(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _outcome(run: Path) -> str:
    """Return the final state of a run by its log; without a log the driver has failed early."""
    return read_run(run).state if (run / LOG_FILE).is_file() else "failed"


def cancel_previous(folder: Path) -> None:
    """Signal another firing on this machine to cancel its run; in a cluster the CronJob has deleted its pod."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / LOCK).read_text(encoding="utf-8"))
        if pid != os.getpid() and has_open(pid, folder / LOCK):
            os.kill(pid, signal.SIGTERM)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
