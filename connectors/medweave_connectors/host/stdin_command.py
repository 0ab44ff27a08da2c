"""The words of a command with what it reads first: a program is sent by its input, since words become part of a pod's URL.

Streams are opened by words alone, through whatever of the engine's connectors lies around ours. No streamflow in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Words(list[str]):
    """The words of a command whose stream is opened.

    Attributes:
        given: what it reads from its standard input before anything else.
    """

    def __init__(self, words: Iterable[str], given: bytes) -> None:
        super().__init__(words)
        self.given = given


def given_to(command: Sequence[str]) -> bytes:
    """What a command reads first; most have nothing of the kind."""
    return command.given if isinstance(command, Words) else b""
