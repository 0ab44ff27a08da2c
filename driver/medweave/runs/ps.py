"""`medweave ps`: the runs of a folder, by their event logs: what goes on, what has ended and how, whose driver is gone."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medweave_core.runlog.run_state import State, steps
from medweave.runs.follow.formatting import why
from medweave_core.runlog.history import LOG_FILE
from medweave.runs.listing import add_runs_option, folders_of, state_of
from medweave_core.runlog.log_state import driver_lives
from medweave_core.errors import StepError
from medweave_core.contracts.progress import duration

COLUMNS = ("run", "workflow", "state", "started", "took", "steps", "jobs")
DESCRIPTION = (
    "Lists the runs of a folder, the latest first: id, workflow, state, start (UTC), how long it took or has been going on, steps\n"
    "done of those that the workflow has (of those that ran, when it is over), and jobs done of those that have begun. The state\n"
    "is `running` while the driver lives, else how the run ended; `driver gone` where it was killed: `medweave clean RUN` ends\n"
    "and removes what such a run has left.\n\n"
    "exit codes: 0, 2 wrong usage, 65 there is no such folder"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave ps`."""
    add_runs_option(parser)
    parser.add_argument(
        "--json", action="store_true", help="print a list of objects, with times in s and all ids whole"
    )


def run(namespace: argparse.Namespace) -> int:
    """Prints the list."""
    found = [described(folder) for folder in folders_of(namespace.runs)]
    if namespace.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    for line in table(found):
        print(line)
    return 0


def described(folder: Path) -> dict[str, Any]:
    """What the list says of a run; of one whose log cannot be read, only that."""
    try:
        state = state_of(folder)
    except StepError:
        return {"run": folder.name, "state": "log damaged"}
    rows = [row for row in steps(state) if row.jobs or state.end is None]  # what has not begun then, does not run
    lives = state.end is None and driver_lives(folder / LOG_FILE)
    if lives:
        state.now_s = state.at(datetime.datetime.now(datetime.UTC))
    return {
        "run": folder.name,
        "workflow": state.workflow,
        "state": state.end or ("running" if lives else "driver gone"),
        "started": state.began.isoformat(timespec="seconds") if state.began else None,
        "seconds": round(state.seconds if state.end else state.now_s, 3),
        "steps_done": sum(row.state == "completed" for row in rows),
        "steps": len(rows),
        "jobs_done": sum(job.state == "completed" for job in state.jobs.values()),
        "jobs": len(state.jobs),
        "failed": [job.label for job in state.failures()],
        "cause": _cause(state),
    }


def _cause(state: State) -> str:
    """Return the first line that says why a run failed; empty where it did not, or its log does not say it."""
    if state.end not in ("failed", "partial"):
        return ""
    texts = (state.message, *(f"{job.label}: {job.message or why(job)}" for job in state.failures()))
    return next((text.splitlines()[0] for text in texts if text), "")


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of the list."""
    rows = [COLUMNS, *(_row(each) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for number, row in enumerate(rows):
        yield "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        if number and (cause := found[number - 1].get("cause")):
            yield f"    {cause}"


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    if "workflow" not in each:
        return (each["run"], "-", each["state"], "-", "-", "-", "-")
    started = str(each["started"] or "-")[: len("2026-11-23T20:00:00")].replace("T", " ")
    done = (f"{each['steps_done']}/{each['steps']}", f"{each['jobs_done']}/{each['jobs']}")
    return each["run"], each["workflow"], each["state"], started, duration(each["seconds"]), *done
