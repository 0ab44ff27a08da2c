"""What every process that a step starts does first, and how those end that a library has started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_KILLED_WITHIN_S = 5.0


def prepare(parent: int) -> None:
    """Cuts the ties to the parent's signal handling, and makes this process end when the parent does.

    Args:
        parent: the parent's process id.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


@contextlib.contextmanager
def all_ended() -> Iterator[Callable[[], None]]:
    """Whatever processes are started in the block, by whomever on behalf of this one, are killed at its end.

    Yields:
        what does so before the end, from any thread.
    """
    before = _descendants()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # those whose parent dies become children of this process

    def end() -> None:
        deadline = time.monotonic() + _KILLED_WITHIN_S
        while (left := _descendants() - before) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)

    try:
        yield end
    finally:
        end()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _descendants() -> set[int]:
    """Processes below this one that live."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(file.parent.name)] = int(parent)
    found = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}
