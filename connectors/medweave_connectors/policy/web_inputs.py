"""Inputs that lie in the web are refused: nobody would say whether what was fetched is what was meant. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from medweave_core.errors import UsageError


def scheme_of(location: Any) -> str:
    """The scheme of a location that is no file's; empty for paths and files."""
    scheme = urllib.parse.urlsplit(location).scheme if isinstance(location, str) and "://" in location else ""
    return "" if scheme == "file" else scheme


def refuse_addresses(inputs: Mapping[str, Any], *, file: str) -> None:
    """Looks through the inputs of a run.

    Args:
        inputs: as they stand in the file.

    Raises:
        UsageError: one of them lies in the web. Its words hold no address, since names may tell about patients.
    """
    for name, value in inputs.items():
        if scheme := next(_schemes(value), ""):
            raise UsageError(
                f"{file}, {name}: medweave fetches nothing from the web.",
                seen=f"a location that begins with {scheme}://",
                expected="a file or folder of this machine or, with a binding of the port, of a site",
                do="fetch it there, hold it against its published SHA-256, and write its path",
            )


def _schemes(value: Any) -> Iterator[str]:
    """Of all files and folders in a value, however deep."""
    if isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            scheme = scheme_of(value.get("location", value.get("path")))
            yield from filter(None, (scheme,))
        for each in value.values():
            yield from _schemes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _schemes(each)
