"""Text that a job or a site wrote: made fit for a terminal, a log or a number.

A job can write anything to its streams. Nothing in it may end a watcher, change another job or control the user's terminal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

LINE_CHARACTERS = 2000  # of one line in a message or an event
LARGEST = 2.0**53  # a larger number is not exact in JSON readers
# Sequences that move the cursor, color text, set the title or the clipboard of a terminal (ECMA-48: CSI, OSC and the like).
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[P\]X^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]"
)
# The rest of the control characters but tab and line feed, line separators, and marks that reverse the order of characters.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Return the text without escape sequences, with `�` in place of other control characters; tab and line feed stay."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", text))


def plain_line(text: str, *, most: int = LINE_CHARACTERS) -> str:
    """Return the text as one plain line of at most `most` characters."""
    line = plain(" ".join(text.splitlines()).strip())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def plain_value(value: Any, *, depth: int = 8) -> Any:
    """Return a JSON value for an event log: plain text, finite numbers; null for other numbers and for deeper levels."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple) and not depth:
        return None
    if isinstance(value, Mapping):
        return {plain(str(key)): plain_value(item, depth=depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, depth=depth - 1) for item in value]
    return value


def load_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text; numbers that are not finite, or beyond 2^53, become null.

    Raises:
        ValueError: the text is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_float=number, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def number(text: str) -> float | None:
    """Return the number in a text, at most 2^53 in size; None for other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None  # false for NaN as well


def whole_number(text: str) -> int | None:
    """Return the whole number in a text of ASCII digits, at most 2^53; None for other text."""
    return _integer(text) if text.isascii() and text.isdecimal() else None


def _integer(text: str) -> int | None:
    return int(text) if len(text) <= 17 and abs(int(text)) <= LARGEST else None
