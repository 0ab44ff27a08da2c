"""The steps that a workflow has: those that have not begun are told by no event."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import StepError
from medweave_core.contracts.events import step_label


def planned_steps(file: Path) -> tuple[str, ...]:
    """Labels of the steps of the first workflow of a StreamFlow file, in order.

    Empty where they cannot be told without an engine (a `$graph`, a document of the net): then they are shown as they begin.
    """
    try:
        workflows: dict[str, Any] = read_mapping(file, "StreamFlow file").get("workflows") or {}
        config = next(iter(workflows.values()))["config"]
        return steps_in(file.parent / str(config.get("file", "")))
    except (StepError, AttributeError, KeyError, StopIteration):
        return ()


def steps_in(workflow: Path) -> tuple[str, ...]:
    """Labels of the steps of a CWL workflow, in order; empty where it cannot be read."""
    try:
        steps = read_mapping(workflow, "CWL workflow").get("steps") or {}
        names = steps if isinstance(steps, Mapping) else [step["id"].lstrip("#") for step in steps]
    except (StepError, OSError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(step_label(str(name)) for name in names)
