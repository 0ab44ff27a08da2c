"""A connector's `run` that looks a job's command up before it runs it: the one place where reuse happens, for all connectors."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, MutableMapping, MutableSequence
from typing import Any, TypeVar, cast

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.cache import session
from medweave_connectors.jobs.remote_environment import file_name
from medweave_connectors.runlog import current
from medweave_connectors.runlog.job import CommandOutcome

Told = tuple[str, int] | None
Run = TypeVar("Run", bound=Callable[..., Awaitable[tuple[str, int] | None]])


def reusing(run: Run) -> Run:
    """The same `run`, for which a job's command is none where its work was done before: its outputs lie there then, with code 0."""

    @functools.wraps(run)
    async def looked_up(
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
    ) -> Told:
        arguments = (location, command, environment, workdir, stdin, stdout, stderr, capture_output, timeout, job_name)
        work = session.current_work()
        if job_name is None or workdir is None or work is None:
            return await run(self, *arguments)
        asked = session.Asked(
            words=command,
            environment={**location.environment, **(environment or {})},
            # StreamFlow passes the file of stdout when the tool names none for stderr.
            streams=(file_name(stdin), file_name(stdout), None if stderr == stdout else file_name(stderr)),
        )
        if origin := await work.take(asked):
            if (note := getattr(self, "has_outputs", None)) is not None:
                note(location, workdir)
            if (record := current()) is not None:
                record.command_ended(job_name, reused(origin, await work.report_folder()))
            return "", 0
        token = session.begin(None)  # what this connector calls for it does not look again
        try:
            told = await run(self, *arguments)
        finally:
            session.end(token)
        work.did_well = told is not None and told[1] == 0
        return told

    return cast(Run, looked_up)


def reused(run_id: str, report_folder: Any) -> CommandOutcome:
    """How a command ended that was not run, for an earlier run has done its work.

    Args:
        run_id: that run.
    """
    return CommandOutcome(exit_code=0, seconds=0.0, report_folder=report_folder, reused_from=run_id)
