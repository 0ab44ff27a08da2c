"""`medweave ps`: list the runs of a folder and their states, by their event logs."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medweave.runs.follow.formatting import why
from medweave.runs.listing import add_runs_option, folders_of, state_of
from medweave_core.contracts.progress import duration
from medweave_core.errors import StepError
from medweave_core.runlog.history import LOG_FILE
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_state import RunState, steps

COLUMNS = ("run", "workflow", "state", "started", "took", "steps", "jobs")
DESCRIPTION = """\
List the runs of a folder, latest first: id, workflow, state, start (UTC), duration, finished steps and finished
jobs.

The state is `running` while the driver runs, and otherwise the final state. `driver gone` means that the driver
was killed: resume the run with `medweave run --resume`, or remove its jobs and files with `medweave clean`."""
EPILOG = """\
examples:
  medweave ps
  medweave ps --runs /data/runs --json

exit codes:
  0   list printed
  2   wrong usage
  65  no such folder"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave ps`."""
    add_runs_option(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON list (times in s, full ids)")


def run(namespace: argparse.Namespace) -> int:
    """Print the list."""
    runs = [describe_run(folder) for folder in folders_of(namespace.runs)]
    if namespace.json:
        print(json.dumps(runs, indent=2, ensure_ascii=False))
        return 0
    for line in table(runs):
        print(line)
    return 0


def describe_run(folder: Path) -> dict[str, Any]:
    """Return the entry of a run; only its id and `log damaged` if its log cannot be read."""
    try:
        state = state_of(folder)
    except StepError:
        return {"run": folder.name, "state": "log damaged"}
    rows = [
        row for row in steps(state) if row.jobs or state.end is None
    ]  # a step that has not begun at the end will not run
    is_running = state.end is None and driver_lives(folder / LOG_FILE)
    if is_running:
        state.now_s = state.at(datetime.datetime.now(datetime.UTC))
    return {
        "run": folder.name,
        "workflow": state.workflow,
        "state": state.end or ("running" if is_running else "driver gone"),
        "started": state.began.isoformat(timespec="seconds") if state.began else None,
        "seconds": round(state.seconds if state.end else state.now_s, 3),
        "steps_done": sum(row.state == "completed" for row in rows),
        "steps": len(rows),
        "jobs_done": sum(job.state == "completed" for job in state.jobs.values()),
        "jobs": len(state.jobs),
        "failed": [job.label for job in state.failures()],
        "cause": _cause(state),
    }


def _cause(state: RunState) -> str:
    """Return the first line of the reason why a run failed; empty if it did not fail or the log has no reason."""
    if state.end not in ("failed", "partial"):
        return ""
    texts = (state.message, *(f"{job.label}: {job.message or why(job)}" for job in state.failures()))
    return next((text.splitlines()[0] for text in texts if text), "")


def table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    rows = [COLUMNS, *(_row(entry) for entry in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for number, row in enumerate(rows):
        yield "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        if number and (cause := runs[number - 1].get("cause")):
            yield f"    {cause}"


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    if "workflow" not in entry:
        return (entry["run"], "-", entry["state"], "-", "-", "-", "-")
    started = str(entry["started"] or "-")[: len("2026-11-23T20:00:00")].replace("T", " ")
    done = (f"{entry['steps_done']}/{entry['steps']}", f"{entry['jobs_done']}/{entry['jobs']}")
    return entry["run"], entry["workflow"], entry["state"], started, duration(entry["seconds"]), *done
