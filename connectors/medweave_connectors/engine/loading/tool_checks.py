"""The check of a workflow's types, with each tool read once.

The engine's library reads and parses a tool's file anew for each input and each output of each step: of the lung pipeline's eleven
tools, 76 times, which took half of the time from the start of a run to its first job. The check looks at types and changes
nothing but a tool's shorthand for its output streams, for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cwl_utils.parser.utils

_read: Callable[[Any], Any] = cwl_utils.parser.utils.load_step
_tools: dict[tuple[str, str], Any] = {}


def _load(step: Any) -> Any:
    """The tool that a step runs."""
    if not isinstance(step.run, str):
        return _read(step)
    key = (str(step.loadingOptions.fileuri), step.run)
    if key not in _tools:
        _tools[key] = _read(step)
    return _tools[key]


def install() -> None:
    """Puts it in the place where the library looks it up."""
    cwl_utils.parser.utils.load_step = _load
