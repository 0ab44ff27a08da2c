"""Output to streams whose reader may be gone: a closed pipe or terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TextIO


def put(text: str, stream: TextIO) -> None:
    """Write a line and flush it. A closed stream must not end a run, so it is discarded."""
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:
        put(text.encode("ascii", "backslashreplace").decode(), stream)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and _is_device(stream)):
            discard(stream)


def settle(stream: TextIO) -> None:
    """Flush a stream, or discard its buffer: otherwise the interpreter would exit with 120."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, with what is in its buffer."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_device(stream: TextIO) -> bool:
    """Return whether a stream is or was a terminal: isatty is false for a closed one."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return False
