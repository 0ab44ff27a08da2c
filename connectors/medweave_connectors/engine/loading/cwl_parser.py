"""CWL documents, read by libyaml.

The engine's library reads each of a workflow's files by ruamel.yaml's Python parser, which takes a fifth of the time of a run that
has nothing to do. What that parser may take otherwise is still left to it, and so is what is wrong: its errors stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cwl_utils.parser
import yaml  # type: ignore[import-untyped]

from medweave_core.documents import fast_yaml

_stock: Callable[..., Any] = cwl_utils.parser.load_document_by_string


def _load(string: str, uri: str, loadingOptions: Any = None, id_: str | None = None, load_all: bool = False) -> Any:
    """A CWL object from the text of a document."""
    try:
        document = fast_yaml.load(string)
    except (fast_yaml.Unusual, yaml.YAMLError, ValueError, RecursionError):
        return _stock(string, uri, loadingOptions, id_, load_all)
    return cwl_utils.parser.load_document_by_yaml(document, uri, loadingOptions, id_, load_all)


def document(path: Path) -> Mapping[str, Any] | None:
    """A document as plain data, where it is read quickly; else None."""
    try:
        data = fast_yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, fast_yaml.Unusual, yaml.YAMLError, ValueError, RecursionError):
        return None
    return data if isinstance(data, Mapping) else None


def install() -> None:
    """Puts it in the place where the library looks it up."""
    cwl_utils.parser.load_document_by_string = _load
