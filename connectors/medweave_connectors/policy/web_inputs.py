"""Inputs at web addresses are refused: the content of a download would not be verified. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from medweave_core.errors import UsageError


def scheme_of(location: Any) -> str:
    """Return the scheme of a web location; empty for paths and `file:` locations."""
    scheme = urllib.parse.urlsplit(location).scheme if isinstance(location, str) and "://" in location else ""
    return "" if scheme == "file" else scheme


def refuse_addresses(inputs: Mapping[str, Any], *, file: str) -> None:
    """Check the inputs of a run.

    Args:
        inputs: as the job file has them.

    Raises:
        UsageError: an input has a web address. The message has no address, which may name a patient.
    """
    for name, value in inputs.items():
        if scheme := next(_schemes(value), ""):
            raise UsageError(
                f"{file}, {name}: medweave fetches nothing from the web.",
                seen=f"a location that begins with {scheme}://",
                expected="a file or folder of this machine or, with a binding of the port, of a site",
                do="fetch it there, compare it with its published SHA-256, and write its path",
            )


def _schemes(value: Any) -> Iterator[str]:
    """Yield the web schemes of all files and folders in a value, at any depth."""
    if isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            scheme = scheme_of(value.get("location", value.get("path")))
            yield from filter(None, (scheme,))
        for item in value.values():
            yield from _schemes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _schemes(item)
