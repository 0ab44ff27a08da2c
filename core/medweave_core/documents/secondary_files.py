"""Missing secondary files of inputs, checked before a run."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave_core.documents.file_locations import path_of
from medweave_core.documents.line_numbers import FieldPath


def missing_secondary_files(
    value: Any, described: Any, folder: Path, field: FieldPath = ()
) -> Iterator[tuple[FieldPath, str, Path]]:
    """Return the field of each File, the pattern, and the path where the file is expected.

    Patterns and requirements that are expressions are left to the run.

    Args:
        value: of an input, as a job file has it.
        described: the input, or the field of a record, as its document has it.
        folder: where relative paths start.
        field: of the value.
    """
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from missing_secondary_files(item, described, folder, (*field, number))
    elif isinstance(value, Mapping) and value.get("class") == "File":
        path = path_of(value)
        # pathlib's tests raise where a path is too long or may not be read.
        is_there = path is not None and os.path.isfile(folder / path)  # noqa: PTH113
        for pattern in _required_patterns(described) if is_there else ():
            name = _with_pattern(str(value.get("basename") or posixpath.basename(str(path))), pattern)
            expected = (folder / str(path)).with_name(name)
            if name not in _listed(value) and not os.path.exists(expected):  # noqa: PTH110
                yield field, pattern, expected
    elif isinstance(value, Mapping):
        for name, inner in _record_fields(described):
            yield from missing_secondary_files(value.get(name), inner, folder, (*field, name))


def _required_patterns(described: Any) -> Iterator[str]:
    patterns = described.get("secondaryFiles") if isinstance(described, Mapping) else None
    for entry in patterns if isinstance(patterns, list) else [patterns]:
        pattern, required = (
            (entry.get("pattern"), entry.get("required")) if isinstance(entry, Mapping) else (entry, None)
        )
        if isinstance(pattern, str) and required in (None, True) and not pattern.endswith("?") and "$" not in pattern:
            yield pattern


def _with_pattern(name: str, pattern: str) -> str:
    """Return the name of a secondary file: each `^` takes the last extension away."""
    while pattern.startswith("^"):
        name, pattern = posixpath.splitext(name)[0], pattern[1:]
    return name + pattern


def _listed(value: Mapping[str, Any]) -> set[str]:
    files = [file for file in value.get("secondaryFiles") or () if isinstance(file, Mapping)]
    return {str(file.get("basename") or posixpath.basename(path_of(file) or "")) for file in files}


def _record_fields(described: Any) -> Iterator[tuple[str, Any]]:
    kinds = described.get("type") if isinstance(described, Mapping) else None
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, Mapping):
            continue
        if kind.get("type") == "array":
            yield from _record_fields({"type": kind.get("items")})
        fields = kind.get("fields") or ()
        yield from (
            fields.items() if isinstance(fields, Mapping) else ((str(member.get("name")), member) for member in fields)
        )
