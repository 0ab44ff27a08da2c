"""Where files are that CWL and StreamFlow files name: a `path` is taken literally, a `location` or `run` is a URI."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "file://"


def location_of(path: str) -> str:
    """Return an absolute path as a URI."""
    return FILE + urllib.parse.quote(path)


def place_key(value: Mapping[str, Any]) -> str:
    """Return the key that says where a File or Directory is: `location` wins, as in every CWL runner."""
    return "location" if value.get("location") else "path"


def path_of(value: Mapping[str, Any]) -> str | None:
    """Return the path of a File or Directory, relative or absolute; None if it has none or is not a file of a machine."""
    key = place_key(value)
    text = value.get(key)
    if not isinstance(text, str) or not text:
        return None
    if text.startswith(FILE):
        return urllib.parse.unquote(text.removeprefix(FILE).removeprefix("localhost"))
    if "://" in text:
        return None
    return urllib.parse.unquote(text) if key == "location" else text


def document_of(text: str, folder: Path) -> Path:
    """Return the workflow or job file that a StreamFlow file names; what follows its last `#` may be a process in it."""
    whole = folder / text
    is_whole = "#" not in text or os.path.isfile(whole)  # noqa: PTH113  # pathlib raises where a path is too long
    return whole if is_whole else folder / text.rpartition("#")[0]


def path_of_reference(reference: str) -> str:
    """Return the path, relative or absolute, in a reference of a CWL document, such as `run`."""
    return urllib.parse.unquote(reference.partition("#")[0])


def with_quoted_paths(value: Any) -> Any:
    """Return a document with each File's and Directory's `path` escaped, for a reader that takes it for a URI.

    Mappings and lists are changed in place, so that they keep the numbers of their lines.
    """
    if isinstance(value, dict):
        path = value.get("path")
        if value.get("class") in ("File", "Directory") and isinstance(path, str) and "://" not in path:
            value["path"] = urllib.parse.quote(path)
        for item in value.values():
            with_quoted_paths(item)
    elif isinstance(value, list):
        for item in value:
            with_quoted_paths(item)
    return value
