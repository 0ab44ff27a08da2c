"""The JSON files that describe a cohort: reading them, and the labels that they declare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts.labels import Label
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.labels import parse_labels
from medweave_steps.io.findings import FindingError, refuse


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return the object of a JSON file.

    Args:
        what: its name in messages, such as `the cohort card`.
    Raises:
        FindingError: not JSON, or no object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise bad_json(what, path.name, "text that is not JSON") from error
    if not isinstance(data, dict):
        raise bad_json(what, path.name, "JSON without a top-level object")
    return data


def labels_of(document: Mapping[str, Any], what: str, file: str) -> tuple[Label, ...]:
    """Return the labels that a describing file declares, before merging.

    Raises:
        FindingError: the labels have another form.
    """
    try:
        return parse_labels(document.get("labels", {}), where=f"{what} ({file})")
    except UserInputError as error:
        raise bad_json(
            what, file, f"labels that are neither an object (value: name) nor a list: {error.seen}"
        ) from error


def bad_json(what: str, file: str, seen: str) -> FindingError:
    """Return the error about a describing file that cannot be used."""
    return refuse(
        "bad-json", f"{what} ({file}) cannot be used.", seen=seen, expected="a JSON object in the documented form",
        do=f"correct {file}",
    )  # fmt: skip
