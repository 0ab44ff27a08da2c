"""Queries of final job states: one line for all waiting jobs, one query at a time. Does not import streamflow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from medweave_connectors.host.gather import cancel_and_wait
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import FinalReport, parse_final_report, split_by_job
from medweave_connectors.sites.slurm.commands import FinalStateQuery
from medweave_connectors.sites.slurm.watch import QueryRate

AT_ONCE = 16  # jobs per query, whose last output lines are in one answer


class FinalStateQueries:
    """The one task that queries final states."""

    def __init__(self, run_line: Callable[[str], Awaitable[str]], rate: QueryRate) -> None:
        """Create the query task; no query runs before there is a job.

        Args:
            run_line: runs a line on the login node and returns its output, or raises.
            rate: limits the rate of all queries.
        """
        self._run_line, self._rate = run_line, rate
        self._waiting: list[tuple[FinalStateQuery, asyncio.Future[FinalReport]]] = []
        self._task: asyncio.Task[None] | None = None

    async def query(self, job: FinalStateQuery) -> FinalReport:
        """Return the reports of all sources about a job that seems to have ended.

        Raises:
            Exception: the query failed.
        """
        answer: asyncio.Future[FinalReport] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """End the queries; jobs that wait for an answer get an error."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _run(self) -> None:
        """Query until no job waits. If the task dies, each waiter gets its error and none waits forever."""
        try:
            await self._ask_all()
        except BaseException as error:
            waiting, self._waiting = self._waiting, []
            for _, answer in waiting:
                _fail(answer, error)
            if not isinstance(error, Exception):
                raise

    async def _ask_all(self) -> None:
        while self._waiting:
            await self._rate.wait()
            batch = self._waiting[:AT_ONCE]
            try:
                by_job = split_by_job(await self._run_line(commands.ends([job for job, _ in batch])))
            except Exception as error:  # any failure: nothing is known about these jobs
                for _, answer in batch:
                    _fail(answer, error)
            else:
                for job, answer in batch:
                    _answer(job, answer, by_job)
            self._waiting = [(job, answer) for job, answer in self._waiting if not answer.done()]


def _answer(job: FinalStateQuery, answer: asyncio.Future[FinalReport], by_job: Mapping[str, str]) -> None:
    """Resolve the future of one job: output that cannot be parsed does not affect the other jobs."""
    try:
        words = parse_final_report(by_job[job.job_id], job.job_id, job.files.token)
    except (KeyError, ValueError):
        _fail(answer, ValueError(f"the answer about job {job.job_id} could not be read"))
    else:
        if not answer.done():
            answer.set_result(words)


def _fail(answer: asyncio.Future[FinalReport], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error if isinstance(error, Exception) else ConnectionError("the query was cancelled"))
