"""Names of files as words of a step's command, and as locations of its tokens: whatever a name holds, it stays a name.

The engine quotes single inputs, and leaves the items of a list as they are, where the list has an `inputBinding` and its items have
none: a shell then splits names at blanks, and runs what stands in them. And it takes `%41` in a path for the letter A.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from types import ModuleType
from typing import Any

import streamflow.cwl.translator
import streamflow.cwl.utils
from streamflow.cwl.command import CWLCommandTokenProcessor, CWLForwardCommandTokenProcessor
from streamflow.workflow.command import MapCommandTokenProcessor, UnionCommandTokenProcessor

_FILE = "file://"
_made: Callable[..., Any] = streamflow.cwl.translator._get_command_token_processor_from_input


def location_of(path: str) -> str:
    """A path as a location of a token."""
    return _FILE + urllib.parse.quote(path)


def _processor(cwl_element: Any, *arguments: Any, **keywords: Any) -> Any:
    """The words that an input adds to a command."""
    binding = cwl_element.inputBinding
    wanted = getattr(binding, "shellQuote", None)
    processor = _made(cwl_element, *arguments, **keywords)
    if binding is not None and wanted is None:
        binding.shellQuote = None  # the stock one leaves its own answer there, for the next type of a union too
        if isinstance(processor, CWLCommandTokenProcessor) and _quotes_nothing(processor):
            processor.shell_quote = True
    return processor


def _quotes_nothing(processor: Any) -> bool:
    """Whether no part of a list quotes itself, as those with a binding of their own do."""
    return processor.processor is not None and (processor.expression is not None or _all_forwarded(processor.processor))


def _all_forwarded(processor: Any) -> bool:
    match processor:
        case MapCommandTokenProcessor():
            return _all_forwarded(processor.processor)
        case UnionCommandTokenProcessor():
            return all(map(_all_forwarded, processor.processors))
    return isinstance(processor, CWLForwardCommandTokenProcessor)


def _moved(path_processor: ModuleType, path: str, old_dir: str, new_dir: str) -> str:
    """A path or location below one folder, as it is below another one."""
    if old_dir == new_dir:
        return path
    if path.startswith(_FILE):
        return location_of(_moved(path_processor, urllib.parse.unquote(path[len(_FILE) :]), old_dir, new_dir))
    if ":/" in path and not path.startswith("/"):  # of another scheme
        return path
    moved: str = path_processor.join(new_dir, path_processor.relpath(path, old_dir))
    return moved


def install() -> None:
    """Puts both in the places where StreamFlow looks them up."""
    streamflow.cwl.translator._get_command_token_processor_from_input = _processor
    streamflow.cwl.utils.remap_path = _moved
