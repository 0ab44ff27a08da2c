"""Preparation of child processes, and the end of processes that a library has started."""

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
    """Detach this process from the parent's signal handling, and make it end when the parent does.

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
    """Kill all processes at the end of the context that were started in it, directly or by child processes.

    Yields:
        a function that kills them earlier, from any thread.
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
    """Return the ids of all living descendants of this process."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(file.parent.name)] = int(parent)
    descendants = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in descendants} - descendants:
        descendants |= more
    return descendants - {os.getpid()}
