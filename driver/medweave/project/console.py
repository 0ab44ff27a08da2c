"""Output to streams whose reader may have gone: a closed pipe or a closed terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TextIO


def put(text: str, stream: TextIO) -> None:
    """Print a line and flush it. A reader that has gone does not end the run."""
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:
        put(text.encode("ascii", "backslashreplace").decode(), stream)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and _is_device(stream)):
            discard(stream)


def settle(stream: TextIO) -> None:
    """Flush a stream, or discard its buffer: the interpreter would exit with 120 if the last flush failed."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Redirect a stream, with its buffered text, to the null device."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_device(stream: TextIO) -> bool:
    """Return whether the stream is a character device; `isatty` is false for a terminal that was closed."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return False
