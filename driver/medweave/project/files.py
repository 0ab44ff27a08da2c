"""Writing files: complete or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from medweave_core.errors import StorageError


def write_atomically(path: Path, text: str) -> None:
    """Write a file, complete or not at all; its folder is created.

    Raises:
        StorageError: it cannot be written.
    """
    aside = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(path)
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()
    except OSError as error:
        from medweave_core.documents.line_numbers import shown

        blocking_file = next((parent for parent in path.parents if parent.is_file()), None)
        seen = f"{shown(blocking_file)} is a file" if blocking_file else error.strerror or str(error)
        raise StorageError(
            f"{shown(path)}: cannot write this file.",
            seen="a folder of this name" if path.is_dir() else seen,
            expected="a writable path on a disk with free space", do="choose another path",
        ) from error  # fmt: skip
