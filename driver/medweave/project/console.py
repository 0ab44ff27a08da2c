"""Lines to whoever reads them, who may be gone: a pipe that was closed, a terminal whose window was."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TextIO


def put(text: str, stream: TextIO) -> None:
    """A line, at once. That nobody reads it any more is no reason to end a run."""
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:
        put(text.encode("ascii", "backslashreplace").decode(), stream)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and _is_device(stream)):
            discard(stream)


def settle(stream: TextIO) -> None:
    """What is left in its buffer is written, or goes nowhere: the interpreter would end with 120 if it could not write it."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """What is left in its buffer, and all that follows, goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_device(stream: TextIO) -> bool:
    """Whether it is a terminal, or was one: a terminal that has gone says that it is none."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return False
