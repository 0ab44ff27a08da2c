"""The JSON Schema of StreamFlow files, and the text form of all schemas."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def text_of(schema: Mapping[str, Any]) -> str:
    """Return a schema as it is printed and stored in a repository."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


@functools.cache
def streamflow_schema() -> dict[str, Any]:
    """Return the JSON Schema of a StreamFlow file."""
    document: dict[str, Any] = json.loads(files("medweave").joinpath("streamflow.schema.json").read_text("utf-8"))
    return document
