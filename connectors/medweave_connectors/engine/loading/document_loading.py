"""CWL documents and job files, read quickly and as they are written.

StreamFlow's parser (cwl-utils) reads the unescaped paths of documents, and of the files that documents name, as URIs:
`%41` becomes A, `+` a blank, and `#` or `?` ends a path. An emoji that JSON writes as two escapes becomes two characters.

It reads each document by ruamel.yaml's Python parser: a fifth of the time of a run whose steps are all cache hits. libyaml reads
the same document here; what the two may read differently, and every error, is left to the Python parser.

Its check of types reads a tool's file again for each input and each output of each step: 76 times for the eleven tools of the lung
pipeline, half of the time from the start of a run to its first job. Here each tool is read once: the check changes nothing in a
tool but its shorthand for output streams, for good.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import cwl_utils.parser
import cwl_utils.parser.utils
import yaml as pyyaml  # type: ignore[import-untyped]

from medweave_core.documents import fast_yaml
from medweave_core.documents.file_locations import FILE, document_of, with_quoted_paths
from medweave_core.documents.yaml_documents import with_whole_characters

_stock_document_by_uri: Callable[..., Any] = cwl_utils.parser.load_document_by_uri
_stock_document_by_string: Callable[..., Any] = cwl_utils.parser.load_document_by_string
_stock_document_by_yaml: Callable[..., Any] = cwl_utils.parser.load_document_by_yaml
_stock_step: Callable[[Any], Any] = cwl_utils.parser.utils.load_step
_stock_inputfile_by_uri: Callable[..., Any] = cwl_utils.parser.utils.load_inputfile_by_uri
_stock_inputfile_by_string: Callable[..., Any] = cwl_utils.parser.utils.load_inputfile_by_string
_stock_inputfile_by_yaml: Callable[..., Any] = cwl_utils.parser.utils.load_inputfile_by_yaml
_NOT_FAST = (fast_yaml.Unusual, pyyaml.YAMLError, ValueError, RecursionError)
_tools: dict[tuple[str, str], Any] = {}


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


def load_document_by_uri(path: str | Path, *arguments: Any, **keywords: Any) -> Any:
    """Return the CWL object at a path or URI."""
    return _stock_document_by_uri(uri_of(path), *arguments, **keywords)


def load_document_by_string(
    string: str, uri: str, loadingOptions: Any = None, id_: str | None = None, load_all: bool = False
) -> Any:
    """Return the CWL object in the text of a document."""
    try:
        document = fast_yaml.load(string)
    except _NOT_FAST:
        return _stock_document_by_string(string, uri, loadingOptions, id_, load_all)
    return cwl_utils.parser.load_document_by_yaml(document, uri, loadingOptions, id_, load_all)


def load_document_by_yaml(yaml: Any, *arguments: Any, **keywords: Any) -> Any:
    """Return the CWL object of a parsed document."""
    return _stock_document_by_yaml(with_quoted_paths(yaml), *arguments, **keywords)


def load_step(step: Any) -> Any:
    """Return the tool that a step runs; the file of a tool is read once."""
    if not isinstance(step.run, str):
        return _stock_step(step)
    key = (str(step.loadingOptions.fileuri), step.run)
    if key not in _tools:
        _tools[key] = _stock_step(step)
    return _tools[key]


def load_inputfile_by_uri(version: str, path: str | Path, *arguments: Any, **keywords: Any) -> Any:
    """Return the values of a job file at a path or URI."""
    return _stock_inputfile_by_uri(version, uri_of(path), *arguments, **keywords)


def load_inputfile_by_string(version: str, string: str, *arguments: Any, **keywords: Any) -> Any:
    """Return the values in the text of a job file."""
    return _stock_inputfile_by_string(version, with_whole_characters(string), *arguments, **keywords)


def load_inputfile_by_yaml(version: str, yaml: Any, *arguments: Any, **keywords: Any) -> Any:
    """Return the values of a parsed job file."""
    return _stock_inputfile_by_yaml(version, with_quoted_paths(yaml), *arguments, **keywords)


def plain_document(path: Path) -> Mapping[str, Any] | None:
    """Return a CWL document as plain data; None where only the Python parser may read it, or it is no mapping."""
    try:
        data = fast_yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, *_NOT_FAST):
        return None
    return data if isinstance(data, Mapping) else None


def document_digests(addresses: Iterable[str | None], workflow: str) -> dict[str, str]:
    """Return the SHA-256 of each document that is a file, by its path from the folder of the workflow.

    Args:
        addresses: `file:` URIs, which may name a part of a document.
        workflow: path of the workflow's own document.
    """
    digests = {}
    for address in addresses:
        parts = urllib.parse.urlsplit(address or "")
        if parts.scheme == "file":
            with contextlib.suppress(OSError):
                path = Path(urllib.parse.unquote(parts.path))
                name = os.path.relpath(path, Path(workflow).resolve().parent)
                digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return dict(sorted(digests.items()))
