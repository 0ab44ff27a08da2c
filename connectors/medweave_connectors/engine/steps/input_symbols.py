"""The words that a tool knows for an input (an enum of CWL): they may be told, for nobody can write anything else there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_known: dict[tuple[str, str], frozenset[str]] = {}
_LAST = re.compile(r"[^/#]+\Z")


def note(step: str, inputs: Iterable[Any]) -> None:
    """Notes those of a tool.

    Args:
        step: its path.
        inputs: as the engine's parser has them.
    """
    for each in inputs:
        if (name := _LAST.search(each.id)) is not None:
            _known[step, name[0]] = frozenset(_symbols(each.type_))


def of(step: str, name: str) -> frozenset[str]:
    """Those of an input; empty where any text may stand."""
    return _known.get((step, name), frozenset())


def _symbols(kind: Any) -> Iterable[str]:
    if isinstance(kind, list):
        for each in kind:
            yield from _symbols(each)
    elif (symbols := getattr(kind, "symbols", None)) is not None:
        yield from (found[0] for each in symbols if (found := _LAST.search(each)))
    elif (items := getattr(kind, "items", None)) is not None and not callable(items):
        yield from _symbols(items)
