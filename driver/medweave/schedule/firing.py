"""One firing of a schedule: is it its turn, has anything changed, then the run, and what is remembered of it."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from medweave import run as runs
from medweave.cancel import holds
from medweave.follow.child import workflow_of
from medweave.follow.displays import put
from medweave.history import LOG_FILE, read_run
from medweave.schedule.document import Schedule
from medweave.schedule.inputs import Untold, changes, parts_of
from medweave.schedule.memory import (
    DIGESTS,
    LOCK,
    Firing,
    Memory,
    alone,
    read_memory,
    secret_of,
    write_memory,
)
from medweave_connectors.record.run import new_run_id
from medweave_connectors.reuse.content import Contents
from medweave_connectors.reuse.memo import Memo
from medweave_steps.contracts.progress import duration

RUNS, RESULTS = "runs", "results"
REPLACED_WITHIN_S = 600.0
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
        _end_the_one_before(folder)
    with alone(folder, REPLACED_WITHIN_S if schedule.overlap == "replace" else 0.0) as is_alone:
        if not is_alone:
            say(schedule, "held: the run before goes on")
            return 0
        (folder / LOCK).write_text(f"{os.getpid()}\n", encoding="utf-8")
        return _turn(schedule, folder)


def say(schedule: Schedule, text: str) -> None:
    """A line in the log of the Job or unit."""
    put(f"medweave: schedule {schedule.name}: {text}", sys.stderr)


def _turn(schedule: Schedule, folder: Path) -> int:
    memory, began, clock = read_memory(folder), _now(), time.monotonic()
    parts, why = _look(schedule, folder, memory)
    if not why:
        done = memory.done
        assert done is not None, "the parts are those of that run"
        text = f"nothing has changed since run {done.run} did all ({done.moment})"
        write_memory(
            folder, Memory(parts=memory.parts, done=done, last=Firing(moment=began, outcome="skipped", why=text))
        )
        say(schedule, f"skipped: {text}")
        return 0
    say(schedule, f"runs: {why}")
    run_id = new_run_id(workflow_of(schedule.file))
    code = _run(schedule, folder, run_id)
    outcome = _outcome(folder / RUNS / run_id)
    firing = Firing(moment=began, outcome=outcome, run=run_id, seconds=round(time.monotonic() - clock, 3))
    if outcome == ALL_DONE:
        write_memory(folder, Memory(parts=parts, done=firing, last=firing))
    else:
        write_memory(folder, Memory(parts=memory.parts, done=memory.done, last=firing))
    say(schedule, f"run {run_id} {outcome} after {duration(firing.seconds)}")
    return code


def _look(schedule: Schedule, folder: Path, memory: Memory) -> tuple[dict[str, str], str]:
    """What the run would be made from, and why it is to be done; empty where it is not."""
    contents = Contents(Memo(folder / DIGESTS))
    try:
        parts = parts_of(schedule.file, contents, secret_of(folder))
    except Untold as error:
        return {}, f"input {error} cannot be told by content from here"
    if not schedule.skips_unchanged:
        return parts, "unchanged inputs are run, too"
    if memory.done is None:
        return parts, "no run has done all before"
    changed = list(changes(memory.parts, parts))
    return parts, f"{', '.join(changed)} changed since run {memory.done.run}" if changed else ""


def _run(schedule: Schedule, folder: Path, run_id: str) -> int:
    asked = argparse.Namespace(
        workflow=None, site=None, job=None, role=[], file=schedule.file, resume=None,
        outdir=folder / RESULTS / run_id, json=False,
    )  # fmt: skip
    asked.outdir.mkdir(parents=True)
    with _variables(MEDWEAVE_RUNS_DIR=str(folder / RUNS), MEDWEAVE_RUN_ID=run_id):
        return runs.run(asked)


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


def _end_the_one_before(folder: Path) -> None:
    """Asks a firing on this machine that goes on to cancel its run; in a cluster the CronJob has ended its pod."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / LOCK).read_text(encoding="utf-8"))
        if pid != os.getpid() and holds(pid, folder / LOCK):
            os.kill(pid, signal.SIGTERM)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
