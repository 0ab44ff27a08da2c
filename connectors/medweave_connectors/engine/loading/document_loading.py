"""CWL documents and job files mean what they say: the engine and its parser change paths and some characters.

They treat the paths of documents and of the files that documents name as URIs that nobody escaped:
`%41` becomes A, `+` a blank, and `#` or `?` ends a path. An emoji that JSON writes as two escapes becomes two characters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cwl_utils.parser
import cwl_utils.parser.utils

from medweave_core.documents.file_locations import FILE, document_of, with_quoted_paths
from medweave_core.documents.yaml_documents import with_whole_characters

_stock_document: Callable[..., Any] = cwl_utils.parser.load_document_by_uri
_stock_document_data: Callable[..., Any] = cwl_utils.parser.load_document_by_yaml
_stock_inputs: Callable[..., Any] = cwl_utils.parser.utils.load_inputfile_by_uri
_stock_inputs_text: Callable[..., Any] = cwl_utils.parser.utils.load_inputfile_by_string
_stock_inputs_data: Callable[..., Any] = cwl_utils.parser.utils.load_inputfile_by_yaml


def uri_of(path: str | Path) -> str:
    """Return the URI of a document, with the name of a process after `#` if the path has one.

    Args:
        path: of this machine, or a URI. A file of the whole name comes before a file and a process.
    """
    text = str(path)
    if "://" in text:
        return text.replace("+", "%2B") if text.startswith(FILE) else text  # the parser takes `+` for a blank
    file = document_of(text, Path())
    return file.resolve().as_uri() + text[len(str(file)) :]


def _document(path: str | Path, *arguments: Any, **keywords: Any) -> Any:
    return _stock_document(uri_of(path), *arguments, **keywords)


def _document_data(yaml: Any, *arguments: Any, **keywords: Any) -> Any:
    return _stock_document_data(with_quoted_paths(yaml), *arguments, **keywords)


def _inputs(version: str, path: str | Path, *arguments: Any, **keywords: Any) -> Any:
    return _stock_inputs(version, uri_of(path), *arguments, **keywords)


def _inputs_text(version: str, string: str, *arguments: Any, **keywords: Any) -> Any:
    return _stock_inputs_text(version, with_whole_characters(string), *arguments, **keywords)


def _inputs_data(version: str, yaml: Any, *arguments: Any, **keywords: Any) -> Any:
    return _stock_inputs_data(version, with_quoted_paths(yaml), *arguments, **keywords)


def install() -> None:
    """Put them in the places where the engine looks them up."""
    cwl_utils.parser.load_document_by_uri = _document
    cwl_utils.parser.load_document_by_yaml = _document_data
    cwl_utils.parser.utils.load_inputfile_by_uri = _inputs
    cwl_utils.parser.utils.load_inputfile_by_string = _inputs_text
    cwl_utils.parser.utils.load_inputfile_by_yaml = _inputs_data
