"""`medweave attach RUN`: show a running workflow that another process drives."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from pathlib import Path

from medweave.project.console import put
from medweave.runs.follow.displays import JsonDisplay, RunDisplay, terminal_display
from medweave.runs.follow.summary import RunInvocation, summary
from medweave.runs.follow.watcher import watch_until_driver_exits
from medweave.runs.listing import add_run_argument, add_runs_option, find_running
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.errors import UsageError
from medweave_core.runlog.history import read_events
from medweave_core.runlog.run_state import RunState, fold

INTERRUPTED = 130
EXIT_CODES = {"completed": 0, "partial": 3}
DESCRIPTION = """\
Attach to a running workflow and show its progress from the beginning, as `medweave run` does. The driver of the
run may be another terminal, a schedule, or a plain `streamflow run` on this machine. With --schedule, the driver
is a Kubernetes pod.

Ctrl-C detaches; the run continues. To cancel a run of this machine, use `medweave cancel`."""
EPILOG = """\
examples:
  medweave attach                          the only run that is running
  medweave attach lung-20260827-101500-3f2a
  medweave attach --schedule nightly-lung

exit codes:
  0    the run completed
  1    the run failed, was canceled, or its event log has no end
  2    wrong usage
  3    the run delivered partial results
  65   no such run, or the run is not running
  130  detached by Ctrl-C"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave attach`."""
    add_run_argument(parser)
    add_runs_option(parser)
    parser.add_argument(
        "--schedule",
        default=None,
        metavar="NAME|FILE",
        help="attach to the running run of this schedule in Kubernetes, instead of RUN",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the events, one JSON object per line (schema: `medweave schema event`)",
    )


def run(namespace: argparse.Namespace) -> int:
    """Show the run until it ends or the user detaches."""
    if namespace.schedule is not None:
        return _attach_to_pod(namespace)
    folder = find_running(namespace.runs, namespace.run)
    display: RunDisplay = JsonDisplay() if namespace.json else terminal_display()
    state = RunState()
    detached = f"run {folder.name} is still running; to attach again: medweave attach {folder.name}"
    if not _shown(display, lambda: watch_until_driver_exits(folder, display, state), detached):
        return INTERRUPTED
    for line in summary(state, RunInvocation(folder), {}):
        display.say(line)
    return EXIT_CODES.get(state.end or "", 1)


def _attach_to_pod(namespace: argparse.Namespace) -> int:
    if namespace.run is not None:
        raise UsageError(
            "--schedule and RUN cannot be combined.", seen=f"RUN {namespace.run}",
            expected="medweave attach --schedule NAME", do="remove RUN",
        )  # fmt: skip
    display: RunDisplay = JsonDisplay() if namespace.json else terminal_display()
    state = RunState()
    detached = f"the run is still running; to attach again: medweave attach --schedule {namespace.schedule}"
    if not _shown(display, lambda: _follow_pod(namespace.schedule, display, state), detached):
        return INTERRUPTED
    if state.end is None:  # the pod was removed before its last lines arrived
        display.say(
            f"medweave: run {state.run_id}: the output of the pod ended before the run did; `medweave schedule "
            "list` shows the state of the run"
        )
    else:
        display.say(next(summary(state, RunInvocation(Path(state.run_id)), {})))
    return EXIT_CODES.get(state.end or "", 1)


def _shown(display: RunDisplay, show: Callable[[], object], detached: str) -> bool:
    """Show a run; return False if the user detached, after printing how to attach again."""
    try:
        show()
    except KeyboardInterrupt:
        display.close()
        put(f"medweave: {detached}", sys.stderr)
        return False
    finally:
        display.close()
    return True


def _follow_pod(named: str, display: RunDisplay, state: RunState) -> None:
    """Show the run of a schedule in a pod until it ends.

    Args:
        named: a schedule's name, or its file.
        state: an empty state, which is filled.

    Raises:
        UsageError: there is no such schedule, or it does not run in a cluster.
        UserInputError: no run of it is running, or the cluster refuses.
    """
    try:
        from medweave.project.schedules import read_schedule
        from medweave.schedule import registry
        from medweave.schedule.kubernetes import Kubernetes
    except ImportError as error:
        raise not_installed(error) from error
    schedule = read_schedule(registry.file_of(named))
    if schedule.place != "kubernetes":
        raise UsageError(
            f"schedule {schedule.name} does not run in Kubernetes.", seen=f"place: {schedule.place}",
            expected="a schedule with place: kubernetes", do=f"medweave attach --runs {schedule.folder / 'runs'}",
        )  # fmt: skip
    for line in Kubernetes(schedule).following():
        if line is not None:
            event = next(iter(read_events(f"{line}\n")), None)
            if event is not None:
                fold(state, event)
            display.take(line, event, state)
        display.show(state, state.at(datetime.datetime.now(datetime.UTC)))
