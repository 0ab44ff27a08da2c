"""`medweave schedule`: a pipeline that runs by itself, again and again, where it has something to do."""

from __future__ import annotations

import argparse
from pathlib import Path

from medweave_core.documents.yaml_documents import not_installed

ACTIONS = ("create", "list", "pause", "resume", "remove", "run", "receive")
DESCRIPTION = (
    "Runs a StreamFlow file by itself, at the times of a schedule's file (`medweave schema schedule`), where there is something\n"
    "to do: unchanged inputs are skipped, and a run whose time comes while the one before goes on is held.\n\n"
    "  medweave schedule create FILE   makes it, or changes the one of that name; in Kubernetes by the chart helm/runner\n"
    "  medweave schedule list          what was made from here, when each runs, and how it went the last time\n"
    "  medweave schedule pause NAME    no run is started from now on; one that goes on is not touched\n"
    "  medweave schedule resume NAME   goes on\n"
    "  medweave schedule remove NAME   takes it away; one that goes on is ended. Runs and results stay\n"
    "  medweave schedule run FILE      one firing, now and here: what the Job, timer or cron calls\n"
    "  medweave schedule receive FILE  takes what a DICOM node sends (C-STORE) for its runs, until it is ended\n\n"
    "exit codes: 0 done, or there was nothing to do; of `run` those of `medweave run`: 1 it failed, 3 a part was delivered,\n"
    "130, 143 and 129 after a signal; 2 wrong usage, 65 a file is wrong or a cluster refuses, 69 a program or library is missing,\n"
    "74 reading or writing failed"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave schedule`."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=f"one of {', '.join(ACTIONS)}")
    parser.add_argument(
        "named", nargs="?", type=Path, metavar="FILE|NAME", help="file of a schedule, or the name of one that was made"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, metavar="DIR",
        help="of run and receive: where the schedule remembers, instead of the folder that its file says",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="of list: print a list of objects instead of a table")


def run(namespace: argparse.Namespace) -> int:
    """Does what is asked; returns the exit code."""
    try:
        from medweave.schedule import actions
    except ImportError as error:
        raise not_installed(error) from error
    return actions.do(namespace)
