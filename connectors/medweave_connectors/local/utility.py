"""The engine's own short commands on this machine.

The stock connector puts folders and values unquoted into a shell line, lets commands read from the driver's terminal, and leaves
those running that take too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from medweave_connectors.errors import TimeLimitExceeded
from medweave_connectors.local.process import DRAIN_S
from medweave_connectors.remote import utility_line


async def execute(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    workdir: str | None,
    stdin: str | None,
    wanted: bool,
    timeout_s: float | None,
) -> tuple[str, int]:
    """Runs a line of a shell: its output and errors, and the exit code as a shell tells it.

    Args:
        environment: over the driver's own.
        stdin: a file; without it the command has no input.
        wanted: false where nobody reads the output.

    Raises:
        TimeLimitExceeded: it did not end in time, and was ended.
    """
    line = utility_line(command, environment=environment, workdir=workdir, stdin=stdin)
    sink = asyncio.subprocess.PIPE if wanted else asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        line,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sink,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        text, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        raise TimeLimitExceeded(f"`{' '.join(command)}` did not end within {timeout_s} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait_for(process.wait(), DRAIN_S)
    assert process.returncode is not None
    code = process.returncode
    return (text or b"").decode(errors="replace").strip(), code if code >= 0 else 128 - code
