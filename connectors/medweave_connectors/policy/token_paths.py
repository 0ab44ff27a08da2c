"""Paths in the engine's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence
from typing import Any

from streamflow.core.workflow import Token


def paths_in(value: Any) -> Iterator[str]:
    """Yield the paths of all files and folders in a value, secondary files included; contents of folders are not listed."""
    if isinstance(value, Token):
        yield from paths_in(value.value)
    elif isinstance(value, MutableSequence):
        for item in value:
            yield from paths_in(item)
    elif isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            if path := value.get("path"):
                yield path
            yield from paths_in(value.get("secondaryFiles") or [])
        else:
            for item in value.values():
                yield from paths_in(item)
