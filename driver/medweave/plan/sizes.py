"""Sizes of the inputs in a job file, counted file by file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave.project.near_files import gone
from medweave_core.documents.file_locations import path_of, place_key
from medweave_core.documents.line_numbers import FieldPath


@dataclass(frozen=True, slots=True)
class Size:
    """Files and the sum of their bytes."""

    num_files: int
    num_bytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.num_files + other.num_files, self.num_bytes + other.num_bytes)


def size_of(value: Any, folder: Path) -> Size | None:
    """Return the size of an input's value; None if a part of it is at a URL.

    Args:
        value: as a job file has it: a File, a Directory, or lists and records of them.
        folder: at which its paths begin.

    Raises:
        FileNotFoundError: a path leads nowhere; `filename` is the path.
        OSError: a folder cannot be read.
    """
    parts = [_of_one(file, folder) for file in files_in(value)]
    return None if None in parts else sum((part for part in parts if part), start=Size(0, 0))


def files_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the Files and Directories in a value, with those in `secondaryFiles`."""
    if isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            yield value
            yield from files_in(value.get("secondaryFiles"))
        else:
            for item in value.values():
                yield from files_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from files_in(item)


def missing_in(value: Any, folder: Path, field: FieldPath = ()) -> Iterator[tuple[FieldPath, Path]]:
    """Yield the missing files and folders in a value, each with its field.

    Args:
        folder: at which its paths begin.
        field: of the value.
    """
    if isinstance(value, Mapping):
        path = path_of(value) if value.get("class") in ("File", "Directory") else None
        if path is not None and gone(folder / path):
            yield (*field, place_key(value)), folder / path
        for name, item in value.items():
            yield from missing_in(item, folder, (*field, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from missing_in(item, folder, (*field, number))


def _of_one(value: Mapping[str, Any], folder: Path) -> Size | None:
    if not value.get(place_key(value)):
        if value["class"] == "File":
            return Size(1, len(str(value.get("contents", "")).encode()))
        return size_of(value.get("listing") or [], folder)
    if (local := path_of(value)) is None:
        return None
    path = folder / local
    if not path.exists():
        raise FileNotFoundError(None, "no such file or folder", str(path))
    return _of_folder(path) if path.is_dir() else Size(1, path.stat().st_size)


def _of_folder(path: Path) -> Size:
    """Return the size of a folder; links are followed, but none twice on one path."""
    found, waiting = Size(0, 0), [(path, frozenset([path.resolve()]))]
    while waiting:
        folder, above = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir():
                    found += Size(1, entry.stat().st_size)
                    continue
                real = Path(entry.path).resolve()
                if real not in above:
                    waiting.append((Path(entry.path), above | {real}))
    return found
