"""`medweave cancel RUN`: signal the driver of a run, which cancels its jobs and cleans up as after Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from medweave.project.console import put
from medweave.runs.follow.displays import LineDisplay
from medweave.runs.follow.summary import RunInvocation, summary
from medweave.runs.follow.watcher import watch_until_driver_exits
from medweave.runs.listing import add_run_argument, add_runs_option, find_running, state_of
from medweave_core.contracts.events import Event
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import LOG_FILE, read_run
from medweave_core.runlog.run_state import RunState

INTERRUPTED = 130
DESCRIPTION = """\
Cancel a running workflow and clean up, like Ctrl-C in its terminal. The command cancels jobs in queues and
clusters. It terminates jobs on this machine, and kills them after 3 s. It uninstalls releases and removes the
folders of the run at its sites.

The command waits for the cleanup and prints its progress. Ctrl-C stops the waiting; the cancellation continues."""
EPILOG = """\
examples:
  medweave cancel                          the only run that is running
  medweave cancel lung-20260827-101500-3f2a

exit codes:
  0    the run was canceled
  1    the run had already ended
  2    wrong usage
  65   no such run, the run is not running, or its driver is not a process of this machine
  130  waiting stopped by Ctrl-C"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave cancel`."""
    add_run_argument(parser)
    add_runs_option(parser)


def run(namespace: argparse.Namespace) -> int:
    """Cancel the run and wait until its driver exits."""
    folder = find_running(namespace.runs, namespace.run)
    state, display = RunState(), LinesAfter(state_of(folder).sequence)
    driver = driver_of(folder)
    try:
        os.kill(driver, signal.SIGTERM)
    except ProcessLookupError:
        pass  # the driver has just exited; the log has_open the final state
    except PermissionError as error:
        raise UserInputError(
            f"run {folder.name} belongs to another user.",
            seen=f"process {driver}: {error.strerror}",
            expected="a run that you started",
            do="ask that user to cancel it",
        ) from error
    put(f"medweave: canceling run {folder.name} and cleaning up (Ctrl-C stops waiting)", sys.stderr)
    try:
        watch_until_driver_exits(folder, display, state)
    except KeyboardInterrupt:
        put(
            f"medweave: the driver is still cleaning up; to see its progress: medweave attach {folder.name}", sys.stderr
        )
        return INTERRUPTED
    for line in summary(state, RunInvocation(folder), {}):
        put(line, sys.stderr)
    return 0 if state.end == "cancelled" else 1


def driver_of(folder: Path) -> int:
    """Return the process id of the running driver of a run.

    Raises:
        UserInputError: the process of that id does not have the log open: the driver is in a container or on another machine.
    """
    pid = int(read_run(folder).facts.get("pid", 0))
    if pid and has_open(pid, folder / LOG_FILE):
        return pid
    raise UserInputError(
        f"cannot reach the driver of run {folder.name} from this machine.",
        seen=f"process {pid} of this machine does not have {shown(folder / LOG_FILE)} open",
        expected="a run whose driver is a process of this machine, outside a container",
        do="cancel the run on the machine or in the container where it was started",
    )


def has_open(pid: int, file: Path, processes: Path = Path("/proc")) -> bool:
    """Return whether a process has a file open; True where that cannot be read (macOS, another user's process)."""
    try:
        opened = list((processes / str(pid) / "fd").iterdir())
    except PermissionError:
        return True
    except FileNotFoundError:
        return not processes.is_dir()
    target = file.stat()
    for descriptor in opened:
        try:
            if os.path.samestat(descriptor.stat(), target):
                return True
        except OSError:  # it was closed just now
            continue
    return False


class LinesAfter(LineDisplay):
    """A line display that skips the first events.

    Args:
        sequence: number of the last event that is not shown.
    """

    def __init__(self, sequence: int) -> None:
        super().__init__()
        self._sequence = sequence

    def take(self, line: str, event: Event | None, state: RunState) -> None:
        """Print the lines of a new event."""
        for text in self._lines.of(event, state) if event else ():
            if event and event.sequence > self._sequence:
                self.say(text)
