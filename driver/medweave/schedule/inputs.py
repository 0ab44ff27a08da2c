"""What a run would be made from, by content: the definition and each input. Two runs with the same parts need not both be done."""

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
    """The parts by name, 64 hexadecimal digits each; no name of a file, and nothing of its content, can be found out from them.

    Args:
        file: the StreamFlow file.
        contents: digests of files; what has not been touched is not read again.
        secret: of the schedule.

    Raises:
        Untold: an input cannot be told by content from here.
        UserInputError: the definition is not whole.
    """
    top = file.resolve().parent
    # From the StreamFlow file's folder: the same wherever the definition lies.
    documents = {os.path.relpath(path, top): contents.digest(path) for path in definition_files(file)}
    found = {DEFINITION: compute_key(documents, secret)}
    if (job := job_file(file)) is not None:
        for name, value in read_mapping(job, "job file").items():
            try:
                content = describe_value(_with_paths(value, job.parent), contents.digest)
            except OSError as error:
                raise Untold(name) from error
            found[f"{INPUT}{name}"] = compute_key({"value": repr(content)}, secret)
    return found


class Untold(Exception):
    """An input, the argument, lies elsewhere, or is none that can be read."""


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """The names of the parts that differ."""
    yield from (name for name in sorted({*before, *now}) if before.get(name) != now.get(name))


def _with_paths(value: Any, folder: Path) -> Any:
    """The value of an input with absolute paths, as `described` wants them."""
    if isinstance(value, list):
        return [_with_paths(each, folder) for each in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("class") not in ("File", "Directory"):
        return {key: _with_paths(each, folder) for key, each in value.items()}
    named = path_of(value) or str(value.get(place_key(value)) or "")
    beside = [_with_paths(each, folder) for each in value.get("secondaryFiles") or []]
    return {**value, "path": str(folder / named), "secondaryFiles": beside}
