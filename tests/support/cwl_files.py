"""The CWL documents of the repository, as plain data."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / "workflows"
TOOLS = sorted((WORKFLOWS / "tools").glob("*.cwl"))
PIPELINES = sorted(path for path in WORKFLOWS.glob("*/*.cwl") if path.parent.name != "tools")
LUNG = WORKFLOWS / "lung-nodule-segmentation"
DOCUMENTS = [*TOOLS, *PIPELINES]


def load(path: Path) -> dict[str, Any]:
    document = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def name(path: Path) -> str:
    """Return the name for test ids: `train` for a tool, `lung-nodule-segmentation/train` for a workflow."""
    return path.stem if path in TOOLS else f"{path.parent.name}/{path.stem}"


def validate(path: Path) -> tuple[int, list[str]]:
    """Run `cwltool --validate` in this process; return the exit code and every warning or error."""
    import cwltool.loghandler
    import cwltool.main

    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                messages.append(" ".join(record.getMessage().split()))

    handler = Keep()
    code = cwltool.main.main(
        ["--validate", str(path)], stdout=io.StringIO(), stderr=io.StringIO(), logger_handler=handler
    )
    cwltool.loghandler._logger.removeHandler(handler)
    return code, messages


def strings(value: Any) -> Iterator[str]:
    """Yield every string in a document, keys included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


def step_paths(pipeline: Path) -> list[str]:
    return [f"/{step}" for step in load(pipeline)["steps"]]


def references(document: dict[str, Any]) -> set[str]:
    """Return the names of inputs that parameter references of a tool read."""
    return {input_name for text in strings(document) for input_name in re.findall(r"\$\(inputs\.(\w+)", text)}


def known_as(pipeline: Path) -> str:
    """Return the name of a workflow in a site's file names: `train`, `infer`; `brain-train` in other folders than the lung's."""
    return pipeline.stem if pipeline.parent == LUNG else f"{pipeline.parent.name.partition('-')[0]}-{pipeline.stem}"
