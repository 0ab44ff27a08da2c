"""Reads the event log of a run while it is written: whole lines, each once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from medweave_core.contracts.events import Event
from medweave_core.runlog.history import read_events


class FollowedLog:
    """Reads the lines that were added since the last call."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def new(self) -> Iterator[tuple[str, Event | None]]:
        """Yield the lines since the last call, each with its event; None for an unknown event type.

        Raises:
            UserInputError: a line is no event.
        """
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            yield text, next(iter(read_events(f"{text}\n")), None)
