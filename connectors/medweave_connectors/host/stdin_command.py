"""A command with data for its standard input: programs are sent by stdin, because in pods the words become part of a URL.

The engine's connectors pass only the list of words when they open a stream, so the data travel with it. Does not import streamflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class CommandWithInput(list[str]):
    """The words of a command, with the first bytes of its standard input.

    Attributes:
        stdin: the bytes that the command reads first.
    """

    def __init__(self, words: Iterable[str], stdin: bytes) -> None:
        super().__init__(words)
        self.stdin = stdin


def stdin_of(command: Sequence[str]) -> bytes:
    """Return the first bytes of a command's standard input; empty for most commands."""
    return command.stdin if isinstance(command, CommandWithInput) else b""
