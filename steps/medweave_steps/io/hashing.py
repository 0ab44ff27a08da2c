"""SHA-256 digests of files, folders and arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def sha256_of_file(path: Path) -> str:
    """Return the hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_of_blocks(path: Path, *, num_blocks: int, block_bytes: int) -> str:
    """Return a hex digest of a file's size and of evenly spaced blocks, first and last included; a small file is read whole.

    The digest detects another length and any change that spans most of the file, but no change that lies between two blocks.

    Args:
        num_blocks: 2 or more.
    """
    size = path.stat().st_size
    if size <= num_blocks * block_bytes:
        return sha256_of_file(path)
    digest = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as stream:
        for number in range(num_blocks):
            stream.seek((size - block_bytes) * number // (num_blocks - 1))
            digest.update(stream.read(block_bytes))
    return digest.hexdigest()


def sha256_of_text(parts: Iterable[str]) -> str:
    """Return the hex digest of strings, each ended by a line feed so that their borders count."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()


def digests_below(folder: Path, *, leave_out: Iterable[str] = ()) -> dict[str, str]:
    """Return the digest of every file below a folder by relative POSIX path, sorted by path."""
    left_out = set(leave_out)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder).as_posix() for path in files}
    return {name: sha256_of_file(path) for path, name in names.items() if name not in left_out}
