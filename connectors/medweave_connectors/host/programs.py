"""Running a program of this machine to its end, within a time. No streamflow in here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

DRAIN_S = 2.0  # after a kill, for what a program's children may hold open


class Ended(NamedTuple):
    """What a program has printed, and its exit code: negative after a signal."""

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
) -> Ended:
    """Runs a program in a session of its own: the terminal's Ctrl-C is for us, and its children end with it.

    Args:
        timeout_s: None waits for ever.
        environment: over this process's own.
        stdin: its input.
        stdout, stderr: as `asyncio.create_subprocess_exec` has them.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it did not end in time; it and its children were killed.
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
        output, said = await asyncio.wait_for(process.communicate(stdin or None), timeout_s)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait_for(process.wait(), DRAIN_S)
    assert process.returncode is not None
    return Ended(output or b"", said or b"", process.returncode)
