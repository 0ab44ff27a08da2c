"""A secret of a folder, in a file that only its owner reads: made once, for whoever comes first."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

NUM_BYTES = 32


def made_once(file: Path, content: bytes | None = None) -> bytes:
    """The secret in a file, which is made where there is none: whole before anybody sees it, and never another one.

    Args:
        content: of a new one; else random bytes.

    Raises:
        OSError: it cannot be made, or read.
    """
    if not file.exists():
        new = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secrets.token_bytes(NUM_BYTES) if content is None else content)
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.link(new, file)
        new.unlink()
    return file.read_bytes()
