"""Displays of a run: text lines, or the events as JSON."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from medweave.project.console import put
from medweave.runs.follow.plain_lines import PlainLines
from medweave_core.contracts.events import Event
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.runlog.run_state import RunState
from medweave_core.untrusted_text import plain


class RunDisplay(Protocol):
    """The interface of a display of a run."""

    def take(self, line: str, event: Event | None, state: RunState) -> None:
        """Take a line of the log. Its event is already in the state; None if this version does not know its type."""

    def show(self, state: RunState, now_s: float) -> None:
        """Draw the state; called several times a second, with or without new events."""

    def say(self, text: str) -> None:
        """Show a message that is not in the log."""

    def close(self) -> None:
        """Stop showing."""


class LineDisplay:
    """Display that prints one line per change on standard error."""

    def __init__(self) -> None:
        self._lines = PlainLines()

    def take(self, line: str, event: Event | None, state: RunState) -> None:
        """Print the lines of an event."""
        for text in self._lines.of(event, state) if event else ():
            self.say(text)

    def show(self, state: RunState, now_s: float) -> None:
        """Do nothing: lines follow events, not time."""

    def say(self, text: str) -> None:
        """Print a message."""
        put(plain(text), sys.stderr)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class JsonDisplay(LineDisplay):
    """Display that prints the lines of the log on standard output, and messages on standard error."""

    def take(self, line: str, event: Event | None, state: RunState) -> None:
        """Print the line as it is in the log."""
        put(line, sys.stdout)


def terminal_display() -> RunDisplay:
    """Return a live display on a capable terminal, else a display of lines.

    Raises:
        BackendMissingError: the library of the live display is not installed.
    """
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return LineDisplay()
    try:
        from medweave.runs.follow.live_display import LiveDisplay
    except ImportError as error:
        raise not_installed(error) from error
    return LiveDisplay()
