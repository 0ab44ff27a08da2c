"""A step's command as the engine gives it to pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the engine wants to be run.

    Attributes:
        words: quoted for a shell already.
        streams: files of stdin, stdout and stderr, relative to the output folder.
        limit_s: its time limit, s; None for none.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    output_directory: str
    streams: Mapping[str, str | None]
    limit_s: int | None
