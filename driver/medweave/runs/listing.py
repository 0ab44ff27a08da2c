"""Find the runs of a folder, their states and the steps of their workflows."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave.runs.clean import file_of
from medweave_core.contracts.events import step_label
from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import StepError, UserInputError
from medweave_core.runlog.history import LOG_FILE, read_log
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_state import RunState, fold
from medweave_core.untrusted_text import load_json

RUNS = Path("runs")
MOST_NAMED = 5  # ids in an error


def add_runs_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the folder of runs."""
    parser.add_argument(
        "--runs",
        type=Path,
        default=RUNS,
        metavar="FOLDER",
        help="folder that contains the run folders (default: runs/)",
    )


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a running workflow."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="run id or run folder (default: the only run that is running)"
    )


def folders_of(runs: Path) -> list[Path]:
    """Return the folders of the runs, the latest first.

    Raises:
        UserInputError: there is no such folder.
    """
    if not runs.is_dir():
        raise UserInputError(
            f"{shown(runs)}: the folder of runs does not exist.",
            expected="a folder that contains run folders; `medweave run` creates runs/ in the current folder",
            do="change to the folder where the runs were started, use --runs FOLDER, or start a run first",
        )  # fmt: skip
    logs = [log for log in runs.glob(f"[!.]*/{LOG_FILE}") if log.is_file()]
    return [log.parent for log in sorted(logs, key=_started, reverse=True)]


def state_of(folder: Path) -> RunState:
    """Return the state of a run from its event log so far.

    Raises:
        UserInputError: its log is damaged.
    """
    events = read_log(folder / LOG_FILE)
    state = RunState()
    for event in events:
        fold(state, event)
    if events:
        state.planned = steps_in(file_of(folder).parent / str(events[0].data.get("workflow_file", "")))
    return state


def find_run(runs: Path, named: str | None) -> Path:
    """Return the folder of a run.

    Args:
        runs: folder of runs.
        named: its id, or its folder's path; None for the run that began last.

    Raises:
        UserInputError: there is no such run.
    """
    if named is not None and (Path(named) / LOG_FILE).is_file():
        return Path(named)
    folders = folders_of(runs)
    matches = [folder for folder in folders if named in (None, folder.name)]
    if not matches:
        raise UserInputError(
            f"no such run: '{named}'." if named else "there are no runs.",
            seen=_listed(folders) or f"no run folder in {shown(runs)}",
            expected="a run id of `medweave ps`",
            do=closest(str(named), [folder.name for folder in folders]) or "see `medweave ps`",
        )
    return matches[0]


def find_running(runs: Path, named: str | None) -> Path:
    """Return the folder of a run whose driver is running.

    Args:
        runs: folder of runs.
        named: as of `find_run`; None for the only running one.

    Raises:
        UserInputError: there is no such run, none is running or several are.
    """
    if named is None:
        running = [folder for folder in folders_of(runs) if driver_lives(folder / LOG_FILE)]
        if len(running) != 1:
            raise UserInputError(
                "several runs are running." if running else "no run is running.",
                seen=_listed(running) or f"no running driver in {shown(runs)}",
                expected="one run whose driver is running",
                do="name one of them" if running else "see the states with `medweave ps`",
            )
        return running[0]
    folder = find_run(runs, named)
    if not driver_lives(folder / LOG_FILE):
        end = state_of(folder).end
        raise UserInputError(
            f"run {folder.name} is not running.",
            seen=f"state {end}" if end else "the event log has no end, and no driver process runs on this machine",
            expected="a run whose driver is running",
            do=f"medweave report {shown(folder)}"
            if end
            else f"`medweave clean {shown(folder)}` cancels its jobs and removes its files",
        )
    return folder


def _listed(folders: list[Path]) -> str:
    return ", ".join(folder.name for folder in folders[:MOST_NAMED])


def _started(log: Path) -> str:
    """Return the time in the first line of a log, or an empty text."""
    with log.open(encoding="utf-8", errors="replace") as stream:
        try:
            return str(load_json(stream.readline())["time"])
        except (ValueError, TypeError, KeyError):
            return ""


def planned_steps(file: Path) -> tuple[str, ...]:
    """Return the labels of the steps of the first workflow of a StreamFlow file, in order.

    Empty if they cannot be read without an engine (a `$graph`, a remote document): then steps are shown as they begin.
    """
    try:
        workflows: dict[str, Any] = read_mapping(file, "StreamFlow file").get("workflows") or {}
        config = next(iter(workflows.values()))["config"]
        return steps_in(file.parent / str(config.get("file", "")))
    except (StepError, AttributeError, KeyError, StopIteration):
        return ()


def steps_in(workflow: Path) -> tuple[str, ...]:
    """Return the labels of the steps of a CWL workflow, in order; empty if it cannot be read."""
    try:
        steps = read_mapping(workflow, "CWL workflow").get("steps") or {}
        names = steps if isinstance(steps, Mapping) else [step["id"].lstrip("#") for step in steps]
    except (StepError, OSError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(step_label(str(name)) for name in names)
