"""The documents that a workflow was read from. No streamflow in here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.parse
from collections.abc import Iterable
from pathlib import Path


def digests(addresses: Iterable[str | None], workflow: str) -> dict[str, str]:
    """SHA-256 of each document that is a file, by its path from the folder of the workflow.

    Args:
        addresses: `file:` URIs, which may name a part of a document.
        workflow: path of the workflow's own document.
    """
    found = {}
    for address in addresses:
        parts = urllib.parse.urlsplit(address or "")
        if parts.scheme == "file":
            with contextlib.suppress(OSError):
                path = Path(urllib.parse.unquote(parts.path))
                name = os.path.relpath(path, Path(workflow).resolve().parent)
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return dict(sorted(found.items()))
