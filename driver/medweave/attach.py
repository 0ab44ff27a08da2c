"""`medweave attach RUN`: shows a run that another terminal, a schedule or `streamflow run` drives."""

from __future__ import annotations

import argparse
import sys

from medweave.follow.displays import Display, Events, for_people, put
from medweave.follow.state import State
from medweave.follow.summary import summary
from medweave.follow.watch import until_gone
from medweave.runs import add_run_argument, add_runs_option, find_going

INTERRUPTED = 130
EXIT_CODES = {"completed": 0, "partial": 3}
DESCRIPTION = (
    "Shows a run that goes on as `medweave run` does, from its beginning: one that another terminal, a schedule or plain\n"
    "`streamflow run` drives on this machine. Ctrl-C leaves it; the run goes on. `medweave cancel` ends it.\n\n"
    "exit codes: 0 the run did all, 1 it failed, was cancelled or has no end in its log, 3 it delivered a part, 130 after Ctrl-C,\n"
    "2 wrong usage, 65 there is no such run, or it does not go on"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave attach`."""
    add_run_argument(parser)
    add_runs_option(parser)
    parser.add_argument(
        "--json", action="store_true", help="print its events, one JSON object a line (`medweave schema event`)"
    )


def run(namespace: argparse.Namespace) -> int:
    """Shows, until the run has ended or the user leaves."""
    folder = find_going(namespace.runs, namespace.run)
    display: Display = Events() if namespace.json else for_people()
    state = State()
    try:
        until_gone(folder, display, state)
    except KeyboardInterrupt:
        display.close()
        put(f"medweave: run {folder.name} goes on; medweave attach {folder.name} shows it again", sys.stderr)
        return INTERRUPTED
    finally:
        display.close()
    for line in summary(state, folder, folder, {}):
        display.say(line)
    return EXIT_CODES.get(state.end or "", 1)
