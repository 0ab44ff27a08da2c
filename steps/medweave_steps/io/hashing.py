"""SHA-256 digests of files, folders and arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def sha256_of_file(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_of_text(parts: Iterable[str]) -> str:
    """Hex digest of strings, each ended by a line feed so that their borders count."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()


def digests_below(folder: Path, *, leave_out: Iterable[str] = ()) -> dict[str, str]:
    """Relative POSIX path to digest, for every file below a folder, sorted by path."""
    left_out = set(leave_out)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder).as_posix() for path in files}
    return {name: sha256_of_file(path) for path, name in names.items() if name not in left_out}
