"""`medweave schedule`: run a pipeline at set times when its inputs changed."""

from __future__ import annotations

import argparse
from pathlib import Path

from medweave_core.documents.yaml_documents import not_installed

ACTIONS = ("create", "list", "pause", "resume", "remove", "run", "receive")
DESCRIPTION = (
    "Runs a StreamFlow file at the times of a schedule's file (`medweave schema schedule`), if there is something\n"
    "to do: unchanged inputs are skipped, and so is a firing while the previous run is still running.\n\n"
    "  medweave schedule create FILE   creates it, or changes the one of that name; in Kubernetes by the chart helm/runner\n"
    "  medweave schedule list          lists the schedules of this account, their times and their last outcomes\n"
    "  medweave schedule pause NAME    starts no more runs; a current run continues\n"
    "  medweave schedule resume NAME   starts runs again\n"
    "  medweave schedule remove NAME   removes it and cancels its current run. Runs and results stay\n"
    "  medweave schedule run FILE      fires once, now and here, as the Job, timer or cron does\n"
    "  medweave schedule receive FILE  receives studies from a DICOM node (C-STORE) for its runs, until a signal ends it\n\n"
    "exit codes: 0 done, or there was nothing to do; of `run` those of `medweave run`: 1 it failed, 3 a part was delivered,\n"
    "130, 143 and 129 after a signal; 2 wrong usage, 65 a file is wrong or a cluster refuses, 69 a program or library is missing,\n"
    "74 reading or writing failed"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave schedule`."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=f"one of {', '.join(ACTIONS)}")
    parser.add_argument(
        "named", nargs="?", type=Path, metavar="FILE|NAME", help="file of a schedule, or the name of a created one"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, metavar="DIR",
        help="of run and receive: folder of the schedule's state, instead of the one in its file",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="of list: print a list of objects instead of a table")


def run(namespace: argparse.Namespace) -> int:
    """Run the action and return the exit code."""
    try:
        from medweave.schedule import actions
    except ImportError as error:
        raise not_installed(error) from error
    return actions.do(namespace)
