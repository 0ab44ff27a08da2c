"""A secret in a file that only its owner can read, created once."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

NUM_BYTES = 32


def made_once(file: Path, content: bytes | None = None) -> bytes:
    """Return the secret in a file, which is created atomically if missing and never replaced.

    Args:
        content: of a new file; None for random bytes.

    Raises:
        OSError: the file cannot be created, or read.
    """
    if not file.exists():
        new = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secrets.token_bytes(NUM_BYTES) if content is None else content)
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.link(new, file)
        new.unlink()
    return file.read_bytes()
