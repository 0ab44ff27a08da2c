"""`medweave schedule`: run a pipeline at set times when its inputs changed."""

from __future__ import annotations

import argparse
from pathlib import Path

from medweave_core.documents.yaml_documents import not_installed

ACTIONS = ("create", "list", "pause", "resume", "remove", "run", "receive")
DESCRIPTION = """\
Run a workflow at set times. A schedule file gives the StreamFlow file, the times and the place
(`medweave schema schedule` prints its schema). At each of these times, a firing starts a run. It starts none if the
inputs have not changed, or while the previous run is still running.

  create FILE   create or update a schedule (Kubernetes: with the chart helm/runner)
  list          list the schedules of this account with their times and last results
  pause NAME    start no further runs; a running run continues
  resume NAME   start runs again
  remove NAME   remove the schedule and cancel its running run; earlier runs and results stay
  run FILE      run once now on this machine, as a firing does
  receive FILE  receive studies from a DICOM node (C-STORE) until Ctrl-C or TERM"""
EPILOG = """\
examples:
  medweave schedule create nightly.yml
  medweave schedule list
  medweave schedule run nightly.yml

exit codes:
  0              done, or nothing to do
  2              wrong usage
  65             invalid file, or the cluster refused the request
  69             a program or library is missing
  74             reading or writing failed
  run: 1         failed
  run: 3         partial results delivered
  run: 129, 143  canceled by HUP or TERM
  run: 130       canceled by Ctrl-C"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave schedule`."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=f"action: {', '.join(ACTIONS)}")
    parser.add_argument(
        "named", nargs="?", type=Path, metavar="FILE|NAME", help="schedule file, or name of a created schedule"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, metavar="DIR",
        help="for run and receive: state folder of the schedule (default: the folder in its file)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="for list: print a JSON list instead of a table")


def run(namespace: argparse.Namespace) -> int:
    """Run the action and return the exit code."""
    try:
        from medweave.schedule import actions
    except ImportError as error:
        raise not_installed(error) from error
    return actions.do(namespace)
