"""`medweave cancel RUN`: ends a run by its driver, which ends its jobs and cleans up, as after Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from medweave.runs.follow.displays import Lines
from medweave_core.runlog.run_state import State
from medweave.runs.follow.summary import Started, summary
from medweave.runs.follow.watch import until_gone
from medweave_core.runlog.history import LOG_FILE, read_run
from medweave.project.console import put
from medweave.runs.listing import add_run_argument, add_runs_option, find_going, state_of
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError
from medweave_core.contracts.events import Event

INTERRUPTED = 130
DESCRIPTION = (
    "Asks the driver of a run that goes on to end it, as Ctrl-C in its terminal does: jobs in queues and clusters are cancelled,\n"
    "those on this machine are ended, and killed after 3 s, releases and folders are removed. Waits for that, and tells what\n"
    "happens. Ctrl-C ends the waiting; the run is cancelled all the same.\n\n"
    "exit codes: 0 the run was cancelled, 1 it ended in another way before, 130 after Ctrl-C, 2 wrong usage, 65 there is no such\n"
    "run, it does not go on, or its driver is no process of this machine"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave cancel`."""
    add_run_argument(parser)
    add_runs_option(parser)


def run(namespace: argparse.Namespace) -> int:
    """Ends it, and waits for its end."""
    folder = find_going(namespace.runs, namespace.run)
    state, display = State(), LinesAfter(state_of(folder).sequence)
    driver = driver_of(folder)
    try:
        os.kill(driver, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended; how, the log says
    except PermissionError as error:
        raise UserInputError(
            f"run {folder.name} is another user's.",
            seen=f"process {driver}: {error.strerror}",
            expected="a run of yours",
            do="ask that user to cancel it",
        ) from error
    put(f"medweave: run {folder.name} is being cancelled and cleaned up (Ctrl-C: do not wait for that)", sys.stderr)
    try:
        until_gone(folder, display, state)
    except KeyboardInterrupt:
        put(f"medweave: the driver goes on with that; medweave attach {folder.name} shows it", sys.stderr)
        return INTERRUPTED
    for line in summary(state, Started(folder), {}):
        put(line, sys.stderr)
    return 0 if state.end == "cancelled" else 1


def driver_of(folder: Path) -> int:
    """Process id of the living driver of a run.

    Raises:
        UserInputError: the process of that id does not hold the log: it is another machine's or container's.
    """
    pid = int(read_run(folder).facts.get("pid", 0))
    if pid and holds(pid, folder / LOG_FILE):
        return pid
    raise UserInputError(
        f"the driver of run {folder.name} is no process that can be reached from here.",
        seen=f"process {pid} of this machine does not hold {shown(folder / LOG_FILE)}",
        expected="a run that is driven on this machine, outside of a container",
        do="cancel it where it was started",
    )


def holds(pid: int, file: Path, processes: Path = Path("/proc")) -> bool:
    """Whether a process has a file open; not known where the kernel does not tell (macOS), or of another user's: taken for yes."""
    try:
        opened = list((processes / str(pid) / "fd").iterdir())
    except PermissionError:
        return True
    except FileNotFoundError:
        return not processes.is_dir()
    target = file.stat()
    for each in opened:
        try:
            if os.path.samestat(each.stat(), target):
                return True
        except OSError:  # it was closed just now
            continue
    return False


class LinesAfter(Lines):
    """Lines of what happens from now on.

    Args:
        sequence: of the last event before.
    """

    def __init__(self, sequence: int) -> None:
        super().__init__()
        self._sequence = sequence

    def take(self, line: str, event: Event | None, state: State) -> None:
        """Prints what a new event changes."""
        for text in self._lines.of(event, state) if event else ():
            if event and event.sequence > self._sequence:
                self.say(text)
