"""The engine's short commands on this machine.

StreamFlow's connector puts folders and values unquoted into a shell line, lets commands read from the driver's terminal, and leaves
commands running after a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from medweave_connectors.host import programs
from medweave_connectors.host.errors import TimeLimitExceeded, program_of
from medweave_connectors.host.stdin_script import WHOLE_INPUT, is_long
from medweave_connectors.jobs.remote_environment import utility_line


async def execute(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    workdir: str | None,
    stdin: str | None,
    wanted: bool,
    timeout_s: float | None,
) -> tuple[str, int]:
    """Run a shell line. Return its output with errors, and the exit code as a shell reports it.

    Args:
        environment: over the driver's.
        stdin: a file; without it the command has no input.
        wanted: False if the output is not read.

    Raises:
        TimeLimitExceeded: the command exceeded the time limit and was ended.
    """
    line = utility_line(command, environment=environment, workdir=workdir, stdin=stdin)
    sink = asyncio.subprocess.PIPE if wanted else asyncio.subprocess.DEVNULL
    try:
        words, script = (
            (["/bin/sh", "-c", line], b"")
            if not is_long(line)
            else (WHOLE_INPUT, line.encode(errors="surrogateescape"))
        )
        ended = await programs.run(
            words, timeout_s=timeout_s, stdin=script, stdout=sink, stderr=asyncio.subprocess.STDOUT
        )
    except TimeoutError:
        raise TimeLimitExceeded(f"`{program_of(command)}` did not end within {timeout_s} s") from None
    return ended.stdout.decode(errors="replace").strip(), ended.code if ended.code >= 0 else 128 - ended.code
