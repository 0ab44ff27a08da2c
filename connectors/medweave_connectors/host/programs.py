"""Run a local program to its end, within a time limit. Does not import streamflow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

DRAIN_S = 2.0  # after a kill, for what a program's children may hold open


class ProgramResult(NamedTuple):
    """Output of a program, and its exit code: negative after a signal."""

    stdout: bytes
    stderr: bytes
    code: int


async def run(
    words: Sequence[str],
    *,
    timeout_s: float | None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.PIPE,
) -> ProgramResult:
    """Run a program in a new session, so that Ctrl-C of the terminal does not reach it, and its children end with it.

    Args:
        timeout_s: None waits forever.
        environment: over that of this process.
        stdin: its input.
        stdout, stderr: see `asyncio.create_subprocess_exec`.

    Raises:
        OSError: the program cannot be started.
        TimeoutError: the program did not end in time; it and its children were killed.
    """
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(stdin or None), timeout_s)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait_for(process.wait(), DRAIN_S)
    assert process.returncode is not None
    return ProgramResult(output or b"", errors or b"", process.returncode)
