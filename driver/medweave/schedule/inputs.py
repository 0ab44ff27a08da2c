"""Digests of what a run depends on: the definition and each input. A run with the same digests can be skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave.schedule.definition import definition_files, job_file
from medweave_connectors.cache.content import Contents
from medweave_connectors.cache.key import compute_key, describe_value
from medweave_core.documents.file_locations import path_of, place_key
from medweave_core.documents.yaml_documents import read_mapping

DEFINITION, INPUT = "definition", "input "


def parts_of(file: Path, contents: Contents, secret: bytes) -> dict[str, str]:
    """Return a keyed digest for each part, 64 hexadecimal digits, from which neither file names nor contents can be derived.

    Args:
        file: the StreamFlow file.
        contents: digests of files; unchanged files are not read again.
        secret: secret of the schedule.

    Raises:
        UnreadableInputError: an input cannot be read from this machine.
        UserInputError: a file of the definition is missing.
    """
    top = file.resolve().parent
    # Paths relative to the StreamFlow file, so that the digest does not depend on where the definition is.
    documents = {os.path.relpath(path, top): contents.digest(path) for path in definition_files(file)}
    parts = {DEFINITION: compute_key(documents, secret)}
    if (job := job_file(file)) is not None:
        for name, value in read_mapping(job, "job file").items():
            try:
                content = describe_value(_with_paths(value, job.parent), contents.digest)
            except OSError as error:
                raise UnreadableInputError(name) from error
            parts[f"{INPUT}{name}"] = compute_key({"value": repr(content)}, secret)
    return parts


class UnreadableInputError(Exception):
    """An input, named by the argument, is on another machine or cannot be read."""


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the parts that differ."""
    yield from (name for name in sorted({*before, *now}) if before.get(name) != now.get(name))


def _with_paths(value: Any, folder: Path) -> Any:
    """Return the value of an input with absolute paths, as `described` expects them."""
    if isinstance(value, list):
        return [_with_paths(item, folder) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("class") not in ("File", "Directory"):
        return {key: _with_paths(item, folder) for key, item in value.items()}
    named = path_of(value) or str(value.get(place_key(value)) or "")
    secondary = [_with_paths(file, folder) for file in value.get("secondaryFiles") or []]
    return {**value, "path": str(folder / named), "secondaryFiles": secondary}
