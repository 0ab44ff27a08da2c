"""`medweave attach RUN`: shows a run that another terminal, a schedule or `streamflow run` drives."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from medweave.project.console import put
from medweave.runs.follow.displays import Display, Events, for_people
from medweave.runs.follow.summary import Started, summary
from medweave.runs.follow.watch import until_gone
from medweave.runs.listing import add_run_argument, add_runs_option, find_going
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.errors import UsageError
from medweave_core.runlog.run_state import State

INTERRUPTED = 130
EXIT_CODES = {"completed": 0, "partial": 3}
DESCRIPTION = (
    "Shows a run that goes on as `medweave run` does, from its beginning: one that another terminal, a schedule or plain\n"
    "`streamflow run` drives on this machine, or with --schedule one in a pod of Kubernetes. Ctrl-C leaves it; the run goes on.\n"
    "`medweave cancel` ends one of this machine.\n\n"
    "exit codes: 0 the run did all, 1 it failed, was cancelled or has no end in its log, 3 it delivered a part, 130 after Ctrl-C,\n"
    "2 wrong usage, 65 there is no such run, or it does not go on"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave attach`."""
    add_run_argument(parser)
    add_runs_option(parser)
    parser.add_argument(
        "--schedule",
        default=None,
        metavar="NAME|FILE",
        help="the run that goes on of a schedule in Kubernetes, instead of RUN",
    )
    parser.add_argument(
        "--json", action="store_true", help="print its events, one JSON object a line (`medweave schema event`)"
    )


def run(namespace: argparse.Namespace) -> int:
    """Shows, until the run has ended or the user leaves."""
    if namespace.schedule is not None:
        return _in_a_pod(namespace)
    folder = find_going(namespace.runs, namespace.run)
    display: Display = Events() if namespace.json else for_people()
    state = State()
    goes_on = f"run {folder.name} goes on; medweave attach {folder.name} shows it again"
    if not _shown(display, lambda: until_gone(folder, display, state), goes_on):
        return INTERRUPTED
    for line in summary(state, Started(folder), {}):
        display.say(line)
    return EXIT_CODES.get(state.end or "", 1)


def _in_a_pod(namespace: argparse.Namespace) -> int:
    try:
        from medweave.schedule.pod_run import follow
    except ImportError as error:
        raise not_installed(error) from error
    if namespace.run is not None:
        raise UsageError(
            "--schedule follows the run that goes on.", seen=f"RUN {namespace.run}",
            expected="medweave attach --schedule NAME", do="leave RUN out",
        )  # fmt: skip
    display: Display = Events() if namespace.json else for_people()
    state = State()
    goes_on = f"the run goes on; medweave attach --schedule {namespace.schedule} shows it again"
    if not _shown(display, lambda: follow(namespace.schedule, display, state), goes_on):
        return INTERRUPTED
    if state.end is None:  # the pod was gone before its last lines came
        display.say(f"medweave: run {state.run_id}: no more is heard; medweave schedule list tells how it ended")
    else:
        display.say(next(summary(state, Started(Path(state.run_id)), {})))
    return EXIT_CODES.get(state.end or "", 1)


def _shown(display: Display, show: Callable[[], object], goes_on: str) -> bool:
    """Whether a run was shown to its end; else the user has left, and is told that it goes on."""
    try:
        show()
    except KeyboardInterrupt:
        display.close()
        put(f"medweave: {goes_on}", sys.stderr)
        return False
    finally:
        display.close()
    return True
