"""The runs of a folder: which there are, how far each one is, and which one is meant."""

from __future__ import annotations

import argparse
from pathlib import Path

from medweave.project.run_files import file_of
from medweave.runs.follow.planned_steps import steps_in
from medweave_core.runlog.run_state import State, fold
from medweave_core.runlog.history import LOG_FILE, read_log
from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import shown
from medweave_core.runlog.log_state import driver_lives
from medweave_core.errors import UserInputError
from medweave_core.untrusted_text import load_json

RUNS = Path("runs")
MOST_NAMED = 5  # ids in an error


def add_runs_option(parser: argparse.ArgumentParser) -> None:
    """The folder of runs."""
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="folder with folders of runs (default: runs/)"
    )


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """A run that goes on."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="id of the run, or its folder (default: the only one that goes on)"
    )


def folders_of(runs: Path) -> list[Path]:
    """The folders of the runs, the latest first.

    Raises:
        UserInputError: there is no such folder.
    """
    if not runs.is_dir():
        raise UserInputError(
            f"{shown(runs)}: there is no such folder of runs.", expected="a folder with one folder for each run",
            do="go where the runs were started, or name it: --runs FOLDER",
        )  # fmt: skip
    logs = [log for log in runs.glob(f"[!.]*/{LOG_FILE}") if log.is_file()]
    return [log.parent for log in sorted(logs, key=_started, reverse=True)]


def state_of(folder: Path) -> State:
    """A run so far.

    Raises:
        UserInputError: its log is damaged.
    """
    events = read_log(folder / LOG_FILE)
    state = State()
    for event in events:
        fold(state, event)
    if events:
        state.planned = steps_in(file_of(folder).parent / str(events[0].data.get("workflow_file", "")))
    return state


def find(runs: Path, named: str | None) -> Path:
    """The folder of a run.

    Args:
        runs: folder of runs.
        named: its id, or its folder's path; None for the run that began last.

    Raises:
        UserInputError: there is no such run.
    """
    if named is not None and (Path(named) / LOG_FILE).is_file():
        return Path(named)
    folders = folders_of(runs)
    found = [folder for folder in folders if named in (None, folder.name)]
    if not found:
        raise UserInputError(
            f"there is no run '{named}'." if named else "there is no run.",
            seen=_listed(folders) or f"nothing in {shown(runs)}",
            expected="the id of a run, as `medweave ps` lists them",
            do=closest(str(named), [folder.name for folder in folders]) or "look with `medweave ps`",
        )
    return found[0]


def find_going(runs: Path, named: str | None) -> Path:
    """The folder of a run whose driver lives.

    Args:
        runs: folder of runs.
        named: as of `find`; None for the only one that goes on.

    Raises:
        UserInputError: there is no such run, none goes on or several do.
    """
    if named is None:
        going = [folder for folder in folders_of(runs) if driver_lives(folder / LOG_FILE)]
        if len(going) != 1:
            raise UserInputError(
                "several runs go on." if going else "no run goes on.",
                seen=_listed(going) or f"no living driver in {shown(runs)}",
                expected="one run whose driver lives",
                do="name one of them" if going else "look with `medweave ps` how they ended",
            )
        return going[0]
    folder = find(runs, named)
    if not driver_lives(folder / LOG_FILE):
        end = state_of(folder).end
        raise UserInputError(
            f"run {folder.name} does not go on.",
            seen=f"state {end}" if end else "no end in its log, and no driver of it on this machine",
            expected="a run whose driver lives",
            do=f"medweave report {shown(folder)}"
            if end
            else f"`medweave clean {shown(folder)}` ends and removes what is left",
        )
    return folder


def _listed(folders: list[Path]) -> str:
    return ", ".join(folder.name for folder in folders[:MOST_NAMED])


def _started(log: Path) -> str:
    """The time in the first line of a log."""
    with log.open(encoding="utf-8", errors="replace") as stream:
        try:
            return str(load_json(stream.readline())["time"])
        except (ValueError, TypeError, KeyError):
            return ""
