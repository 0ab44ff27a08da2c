"""One firing of a schedule: is it its turn, has anything changed, then the run, and what is remembered of it."""

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
from medweave.runs.cancel import holds
from medweave.runs.follow.child import workflow_of
from medweave.schedule.inputs import Untold, changes, parts_of
from medweave.schedule.notifications import is_wanted, notice_of, send
from medweave.schedule.state import DIGESTS, LOCK, Firing, Memory, alone, read_memory, secret_of, write_memory
from medweave.schedule.studies import Study, after
from medweave.schedule.watching import Watching, why_none
from medweave_connectors.cache.content import Contents
from medweave_connectors.cache.database import Memo
from medweave_core.contracts.progress import duration
from medweave_core.errors import StepError
from medweave_core.runlog.history import LOG_FILE, read_run
from medweave_core.runlog.run_ownership import new_run_id

RUNS, RESULTS = "runs", "results"
REPLACED_WITHIN_S = 600.0
GLANCE_S = 1.0  # `medweave schedule list` holds the lock for a moment
ALL_DONE = "completed"


def fire(schedule: Schedule, folder: Path) -> int:
    """Does what is to do now.

    Args:
        folder: of the schedule.

    Returns:
        The exit code of the run; 0 where none was to be done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if schedule.overlap == "allow":
        return _turn(schedule, folder)
    if schedule.overlap == "replace":
        end_the_one_before(folder)
    with alone(folder, REPLACED_WITHIN_S if schedule.overlap == "replace" else GLANCE_S) as is_alone:
        if not is_alone:
            say(schedule, "held: the run before goes on")
            return 0
        (folder / LOCK).write_text(f"{os.getpid()}\n", encoding="utf-8")
        return _turn(schedule, folder)


def say(schedule: Schedule, text: str) -> None:
    """A line in the log of the Job or unit."""
    put(f"medweave: schedule {schedule.name}: {text}", sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What is to be done now.

    Attributes:
        why: in words, it is to be done or not.
        parts: what the run would be made from.
        studies: that it takes in, by their keys.
        finish: what follows when the run has done all.
    """

    is_due: bool
    why: str
    parts: Mapping[str, str] = field(default_factory=dict)
    studies: Mapping[str, Study] = field(default_factory=dict)
    finish: Callable[[], None] = lambda: None


def _turn(schedule: Schedule, folder: Path) -> int:
    memory, began, clock = read_memory(folder), _now(), time.monotonic()
    try:
        work = _look(schedule, folder, memory)
        if not work.is_due:
            write_memory(folder, replace(memory, last=Firing(moment=began, outcome="skipped", why=work.why)))
            say(schedule, f"skipped: {work.why}")
            return 0
        say(schedule, f"runs: {work.why}")
        run_id = new_run_id(workflow_of(schedule.file))
        code = _run(schedule, folder, run_id)
    except StepError:
        firing = Firing(moment=began, outcome="failed", why="it could not begin")
        write_memory(folder, replace(memory, last=firing))
        _tell(schedule, firing, folder)
        raise
    outcome = _outcome(folder / RUNS / run_id)
    firing = Firing(moment=began, outcome=outcome, run=run_id, seconds=round(time.monotonic() - clock, 3))
    is_done = outcome == ALL_DONE
    if not was_ended(outcome):
        memory = replace(memory, tries=after(memory.tries, work.studies, done=is_done))
    if is_done:
        memory = replace(memory, parts=work.parts, done=firing)
    write_memory(folder, replace(memory, last=firing))
    if is_done:
        work.finish()
    say(schedule, f"run {run_id} {outcome} after {duration(firing.seconds)}")
    _tell(schedule, firing, folder)
    return code


def _tell(schedule: Schedule, firing: Firing, folder: Path) -> None:
    """Those who want to know."""
    if schedule.notify is not None and is_wanted(schedule.notify["at"], firing.outcome):
        notice = notice_of(schedule.name, firing, folder / RUNS / firing.run)
        send(schedule.notify, notice, lambda text: say(schedule, text))


def was_ended(outcome: str) -> bool:
    """Whether somebody ended the run: that says nothing of what it was made from."""
    return outcome in ("cancelled", "unknown", "unfinished")


def _look(schedule: Schedule, folder: Path, memory: Memory) -> _Work:
    contents, secret = Contents(Memo(folder / DIGESTS)), secret_of(folder)
    if schedule.watch is None:
        return _changes(schedule, memory, contents, secret)
    watching = Watching(schedule, folder, contents, secret)
    found = watching.find(memory.tries)
    if not found.new:
        return _Work(is_due=False, why=why_none(found))
    watching.take_in(found.new)
    number = len(found.new)
    return _Work(
        is_due=True, why=f"{number} new stud{'y' if number == 1 else 'ies'}", studies=found.new,
        finish=lambda: watching.finish(found.new),
    )  # fmt: skip


def _changes(schedule: Schedule, memory: Memory, contents: Contents, secret: bytes) -> _Work:
    try:
        parts = parts_of(schedule.file, contents, secret)
    except Untold as error:
        return _Work(is_due=True, why=f"input {error} cannot be told by content from here")
    if not schedule.skips_unchanged:
        return _Work(is_due=True, why="unchanged inputs are run, too", parts=parts)
    if memory.done is None:
        return _Work(is_due=True, why="no run has done all before", parts=parts)
    if changed := list(changes(memory.parts, parts)):
        return _Work(is_due=True, why=f"{', '.join(changed)} changed since run {memory.done.run}", parts=parts)
    done = memory.done
    return _Work(is_due=False, why=f"nothing has changed since run {done.run} did all ({done.moment})")


def _run(schedule: Schedule, folder: Path, run_id: str) -> int:
    asked = argparse.Namespace(
        workflow=None, site=None, job=None, role=[], file=schedule.file, resume=None,
        outdir=folder / RESULTS / run_id, json=False,
    )  # fmt: skip
    asked.outdir.mkdir(parents=True)
    with _variables(MEDWEAVE_RUNS_DIR=str(folder / RUNS), MEDWEAVE_RUN_ID=run_id):
        return runs.run(asked, to_a_log=True)


@contextlib.contextmanager
def _variables(**given: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _outcome(run: Path) -> str:
    """How a run ended, by its log; a driver that never began leaves none."""
    return read_run(run).state if (run / LOG_FILE).is_file() else "failed"


def end_the_one_before(folder: Path) -> None:
    """Asks a firing on this machine that goes on to cancel its run; in a cluster the CronJob has ended its pod."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / LOCK).read_text(encoding="utf-8"))
        if pid != os.getpid() and holds(pid, folder / LOCK):
            os.kill(pid, signal.SIGTERM)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
