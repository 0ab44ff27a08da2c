"""Whether the run of an event log has ended, and whether the driver that writes the log is alive."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from pathlib import Path

_TAIL_BYTES = 65536  # a last line is shorter


def came_to_its_end(path: Path) -> bool:
    """Return whether the last event of a log is the end of its run; False for a run that was cut off."""
    try:
        stat = path.stat()
    except OSError:
        return False
    return _has_end(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _has_end(path: Path, _inode: int, size: int, _changed_ns: int) -> bool:
    with contextlib.suppress(OSError):
        with path.open("rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            *_, last = [b"", *file.read().splitlines()]
        return b'"type":"run.ended"' in last
    return False


def driver_lives(path: Path) -> bool:
    """Return whether the process that writes a log is alive: it holds a lock, which the kernel releases when it dies."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two readers must not see each other's lock
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
