"""Cache lookup before a connector runs a job's command: the one place where all connectors reuse earlier outputs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, MutableMapping, MutableSequence
from typing import Any, TypeVar, cast

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.cache import session
from medweave_connectors.jobs.connector_capabilities import RecordsOutputs
from medweave_connectors.jobs.remote_environment import file_name
from medweave_connectors.runlog import current
from medweave_connectors.runlog.job import CommandOutcome

CommandResult = tuple[str, int] | None
Run = TypeVar("Run", bound=Callable[..., Awaitable[tuple[str, int] | None]])


def with_cache_lookup(run: Run) -> Run:
    """Wrap a connector's `run`: on a cache hit the outputs are restored and the command is not run; the exit code is 0."""

    @functools.wraps(run)
    async def run_or_restore(
        self: Any,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = asyncio.subprocess.STDOUT,
        stderr: int | str = asyncio.subprocess.STDOUT,
        capture_output: bool = False,
        timeout: int | None = None,
        job_name: str | None = None,
    ) -> CommandResult:
        arguments = (location, command, environment, workdir, stdin, stdout, stderr, capture_output, timeout, job_name)
        lookup = session.current_lookup()
        if job_name is None or workdir is None or lookup is None:
            return await run(self, *arguments)
        job_command = session.JobCommand(
            words=command,
            environment={**location.environment, **(environment or {})},
            # StreamFlow passes the file of stdout when the tool names none for stderr.
            streams=(file_name(stdin), file_name(stdout), None if stderr == stdout else file_name(stderr)),
        )
        if origin := await lookup.look_up(job_command):
            if isinstance(self, RecordsOutputs):
                self.has_outputs(location, workdir)
            if (record := current()) is not None:
                record.command_ended(job_name, cache_hit_outcome(origin, await lookup.report_folder()))
            return "", 0
        token = session.begin(None)  # connectors that this one wraps must not look up again
        try:
            result = await run(self, *arguments)
        finally:
            session.end(token)
        lookup.has_succeeded = result is not None and result[1] == 0
        return result

    return cast(Run, run_or_restore)


def cache_hit_outcome(run_id: str, report_folder: Any) -> CommandOutcome:
    """Return the outcome of a job that was a cache hit.

    Args:
        run_id: the run that produced the outputs.
    """
    return CommandOutcome(exit_code=0, seconds=0.0, report_folder=report_folder, reused_from=run_id)
