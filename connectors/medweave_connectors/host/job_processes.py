"""Ending a job's processes: its process group, and processes outside of it, found by a variable in their environment.

Does not import streamflow.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
from collections.abc import Collection
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # comes with StreamFlow

KEY = "MEDWEAVE_JOB"  # its value is unique to a job


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group at a site.

    Attributes:
        number: of the group, the process id of its leader.
        started: start time of the leader (`start_time`); empty where it is not known.
    """

    number: int
    started: str = ""


def start_time(pid: str) -> str:
    """Return shell text that prints when a process started, in clock ticks since boot; nothing where that cannot be read.

    The text has no quotes, backslash or `!`, so any shell accepts it within quotes. It reads field 22 of the file; the name in
    field 2 can contain blanks and parentheses.
    """
    return f"({{ read -r stat < /proc/{pid}/stat; }} 2> /dev/null && set -- ${{stat##*) }} && echo ${{20}})"


def end_line(group: ProcessGroup | None, key: str, *, signal: str, grace_s: float) -> str:
    """Return a line for a POSIX shell that ends a job: a signal to its group, and KILL after the grace period to what remains.

    Args:
        group: of the command; None if it did not start. It is not signaled if its number belongs to a later process: as
            long as the group exists, no other process gets the number of its leader.
        key: value of `KEY` in the environment of the job's processes.
        signal: `INT` or `TERM`.
        grace_s: time to end after the signal, s.
    """
    lines = []
    if group is not None:
        kill = (
            f"kill -s {signal} -- -{group.number}; "
            f"n=0; while kill -s 0 -- -{group.number} && [ $n -lt {round(grace_s * 10)} ]; do sleep 0.1; n=$((n+1)); done; "
            f"kill -s KILL -- -{group.number}"
        )
        leader = f'[ ! -e /proc/{group.number} ] || [ "${start_time(str(group.number))}" = {group.started} ]'
        lines = [f"if {leader}; then {kill}; fi" if group.started else kill]
    strays = kill_lines(f"{KEY}={key}", is_whole=True)
    return f"{{ {'; '.join((*lines, strays))}; }} 2>/dev/null; :"


def kill_lines(text: str, *, is_whole: bool = False) -> str:
    """Return a part of a line for a POSIX shell that kills all processes with a variable that contains a text.

    One search through the variables of all processes comes first: a search per process starts two programs for each process of a
    login node, and mostly no process of the job is left. The first search looks for a part of a line, because variables that a
    process has overwritten may lack the last NUL. busybox cannot search a file with NUL bytes, hence `tr`.

    Args:
        text: a variable's name, `=` and value, or a part of that.
        is_whole: the text is the whole variable.
    """
    pattern = shlex.quote(text)
    return (
        f'if cat /proc/[0-9]*/environ | tr "\\0" "\\n" | grep -qF {pattern}; then for each in /proc/[0-9]*; do '
        f'if tr "\\0" "\\n" < "$each/environ" | grep -qF{"x" if is_whole else ""} {pattern}; '
        'then kill -s KILL "${each#/proc/}"; fi; done; fi'
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
    """Kill processes of jobs on this machine outside of their process groups."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(KEY) in keys:
                os.kill(process.pid, signal.SIGKILL)
