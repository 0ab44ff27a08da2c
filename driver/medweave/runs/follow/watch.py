"""A run that is watched: what is new in its log is folded into the state, and shown."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from pathlib import Path

from medweave.runs.follow.displays import Display
from medweave_core.runlog.log_reader import FollowedLog
from medweave_core.runlog.run_state import State, fold
from medweave_core.runlog.history import LOG_FILE
from medweave_core.runlog.log_state import driver_lives

PAUSE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What shows a run, and what is known of it."""

    log: FollowedLog
    display: Display
    state: State

    def look(self) -> None:
        """Takes and shows what is new."""
        for line, event in self.log.new():
            if event is not None:
                fold(self.state, event)
            self.display.take(line, event, self.state)
        self.display.show(self.state, self.state.at(datetime.datetime.now(datetime.UTC)))


def until_gone(folder: Path, display: Display, state: State) -> None:
    """Shows a run that somebody else drives, from its beginning until its driver has ended.

    Args:
        folder: of the run.
        state: the empty state of a run, which is filled.
    """
    watch = Watch(log=FollowedLog(folder / LOG_FILE), display=display, state=state)
    while True:
        over = not driver_lives(folder / LOG_FILE)  # asked first: what it has written is read after that
        watch.look()
        if over:
            return
        time.sleep(PAUSE_S)
