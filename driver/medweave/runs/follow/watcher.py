"""Follow the log of a run: fold new events into the state and show them."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from pathlib import Path

from medweave.runs.follow.displays import RunDisplay
from medweave_core.runlog.history import LOG_FILE
from medweave_core.runlog.log_reader import FollowedLog
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_state import RunState, fold

PAUSE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWatcher:
    """The log, state and display of a run that is shown."""

    log: FollowedLog
    display: RunDisplay
    state: RunState

    def update(self) -> None:
        """Read and show new events."""
        for line, event in self.log.new():
            if event is not None:
                fold(self.state, event)
            self.display.take(line, event, self.state)
        self.display.show(self.state, self.state.at(datetime.datetime.now(datetime.UTC)))


def watch_until_driver_exits(folder: Path, display: RunDisplay, state: RunState) -> None:
    """Show a run of another process, from its beginning until its driver exits.

    Args:
        folder: folder of the run.
        state: an empty state, which is filled.
    """
    watcher = RunWatcher(log=FollowedLog(folder / LOG_FILE), display=display, state=state)
    while True:
        over = not driver_lives(folder / LOG_FILE)  # checked first, so that its last lines are read below
        watcher.update()
        if over:
            return
        time.sleep(PAUSE_S)
