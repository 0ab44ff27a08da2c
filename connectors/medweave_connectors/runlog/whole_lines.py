"""Append a line to a file, complete or not at all."""

from __future__ import annotations

import contextlib
import os

from medweave_core.errors import StorageError


def append(descriptor: int, line: bytes, *, otherwise: str, on_disk: bool = False) -> None:
    """Write a line in one `write`, so that a killed process leaves complete lines and a reader may follow the file.

    One caller at a time: an incomplete line on a full disk is removed.

    Args:
        descriptor: opened for appending.
        line: with its newline.
        otherwise: message about a line that could not be written.
        on_disk: sync to the disk.

    Raises:
        StorageError: the disk is full; the file still ends with a complete line.
    """
    before = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, line)
        if on_disk:
            os.fsync(descriptor)
    except OSError as error:
        written, reason = 0, str(error.strerror)
    else:
        reason = "no space left"
    if written < len(line):
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, before)
        raise StorageError(
            otherwise,
            seen=reason,
            expected="space for a line",
            do="free space on the disk that holds the folder of runs, and run again",
        )
