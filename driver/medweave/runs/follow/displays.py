"""Where a run is shown: lines for people, or the events themselves."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from medweave.runs.follow.plain import PlainLines
from medweave_core.runlog.run_state import State
from medweave.project.console import put
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.contracts.events import Event
from medweave_core.untrusted_text import plain


class Display(Protocol):
    """What shows a run."""

    def take(self, line: str, event: Event | None, state: State) -> None:
        """A line of the log; its event is in the state already, or None if this version does not know its type."""

    def show(self, state: State, now_s: float) -> None:
        """Called a few times a second, whether something has happened or not."""

    def say(self, text: str) -> None:
        """Something that the log does not tell."""

    def close(self) -> None:
        """Nothing more is shown."""


class Lines:
    """One line per change, on standard error, as `streamflow run` prints its own."""

    def __init__(self) -> None:
        self._lines = PlainLines()

    def take(self, line: str, event: Event | None, state: State) -> None:
        """Prints what the event changes."""
        for text in self._lines.of(event, state) if event else ():
            self.say(text)

    def show(self, state: State, now_s: float) -> None:
        """Time alone changes nothing."""

    def say(self, text: str) -> None:
        """A line more."""
        put(plain(text), sys.stderr)

    def close(self) -> None:
        """Nothing is open."""


class Events(Lines):
    """The lines of the log, on standard output; the words beside them stay on standard error."""

    def take(self, line: str, event: Event | None, state: State) -> None:
        """Prints the line as it stands in the log."""
        put(line, sys.stdout)


def for_people() -> Display:
    """A picture on a terminal that can show one, else lines.

    Raises:
        BackendMissingError: the library that draws it is not installed.
    """
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return Lines()
    try:
        from medweave.runs.follow.live import LivePicture
    except ImportError as error:
        raise not_installed(error) from error
    return LivePicture()
