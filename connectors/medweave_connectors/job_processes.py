"""The end of a job's processes: of its group, and of those that have left it, which a mark in their environment tells.

No streamflow in here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
from collections.abc import Collection

import psutil  # type: ignore[import-untyped]  # comes with StreamFlow

KEY = "MEDWEAVE_JOB"  # its value is a job's own


def end_line(group: int | None, key: str, *, signal: str, grace_s: float) -> str:
    """A line for a POSIX shell that ends a job: the signal to its group, and KILL after the grace to whatever is left of it.

    Args:
        group: number of the process group of the command; None if it did not get so far.
        key: value of `KEY` in the environment of the job's processes.
        signal: `INT` or `TERM`.
        grace_s: time to end by itself, s.
    """
    lines = [] if group is None else [
        f"kill -s {signal} -- -{group}",
        f"n=0; while kill -s 0 -- -{group} && [ $n -lt {round(grace_s * 10)} ]; do sleep 0.1; n=$((n+1)); done",
        f"kill -s KILL -- -{group}",
    ]  # fmt: skip
    strays = kill_lines(f"-x {shlex.quote(f'{KEY}={key}')}")
    return f"{{ {'; '.join((*lines, strays))}; }} 2>/dev/null; :"


def kill_lines(pattern: str) -> str:
    """A part of a line for a POSIX shell that kills all processes with such a variable; `pattern` are words for grep."""
    return (
        "for each in /proc/[0-9]*; do "
        f'if tr "\\0" "\\n" < "$each/environ" | grep -q {pattern}; then kill -s KILL "${{each#/proc/}}"; fi; done'
    )


def key_of(owner: str) -> str:
    """Return a new value of `KEY` for a job on this machine of a run (`RunOwner.process_key`)."""
    return f"{owner}.{secrets.token_hex(8)}"


def kill_of_runs(owners: Collection[str]) -> int:
    """Kill the processes on this machine of the jobs of runs (`RunOwner.process_key`); return how many there were."""
    killed = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(KEY, "").rpartition(".")[0] in owners:
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
    return killed


def kill_marked(keys: Collection[str]) -> None:
    """Kills what jobs have left on this machine outside of their groups."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(KEY) in keys:
                os.kill(process.pid, signal.SIGKILL)
