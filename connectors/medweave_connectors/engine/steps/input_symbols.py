"""The symbols of a tool's enum inputs. They may enter the event log: such an input can hold no other text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_known: dict[tuple[str, str], frozenset[str]] = {}
_LAST = re.compile(r"[^/#]+\Z")


def note(step: str, inputs: Iterable[Any]) -> None:
    """Store the symbols of a tool's inputs.

    Args:
        step: path of the tool's step.
        inputs: as StreamFlow's parser represents them.
    """
    for port in inputs:
        if (name := _LAST.search(port.id)) is not None:
            _known[step, name[0]] = frozenset(_symbols(port.type_))


def of(step: str, name: str) -> frozenset[str]:
    """Return the symbols of an input; empty if it may hold any text."""
    return _known.get((step, name), frozenset())


def _symbols(kind: Any) -> Iterable[str]:
    if isinstance(kind, list):
        for alternative in kind:
            yield from _symbols(alternative)
    elif (symbols := getattr(kind, "symbols", None)) is not None:
        yield from (last[0] for symbol in symbols if (last := _LAST.search(symbol)))
    elif (items := getattr(kind, "items", None)) is not None and not callable(items):
        yield from _symbols(items)
