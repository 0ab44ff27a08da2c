"""Asks how jobs have ended: one line for all that wait to know it, one at a time. No streamflow in here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import EndWords, read_end, sections
from medweave_connectors.sites.slurm.commands import EndOf
from medweave_connectors.sites.slurm.watch import SHORTEST_S, Pace

AT_ONCE = 16  # the last lines of so many jobs are one answer


class Ends:
    """The one task that asks for ends."""

    def __init__(self, ask: Callable[[str], Awaitable[str]], pace: Pace) -> None:
        """Asks nothing before there is a job.

        Args:
            ask: runs a line on the login node and returns its output, or raises.
            pace: of all questions.
        """
        self._ask, self._pace = ask, pace
        self._waiting: list[tuple[EndOf, asyncio.Future[EndWords]]] = []
        self._task: asyncio.Task[None] | None = None

    async def of(self, job: EndOf) -> EndWords:
        """What all sources say about a job that seems to have ended.

        Raises:
            Exception: the site could not be asked.
        """
        answer: asyncio.Future[EndWords] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go_on())
        return await answer

    async def _go_on(self) -> None:
        """Ask until no job is left. If the task dies, each waiter gets its error and none waits for ever."""
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
            while not self._pace.take(time.monotonic()):
                await asyncio.sleep(SHORTEST_S)
            asked = self._waiting[:AT_ONCE]
            try:
                by_job = sections(await self._ask(commands.ends([job for job, _ in asked])))
            except Exception as error:  # whatever broke, nothing is known about any of them
                for _, answer in asked:
                    _fail(answer, error)
            else:
                for job, answer in asked:
                    _answer(job, answer, by_job)
            self._waiting = [(job, answer) for job, answer in self._waiting if not answer.done()]


def _answer(job: EndOf, answer: asyncio.Future[EndWords], by_job: Mapping[str, str]) -> None:
    """Resolve the answer of one job: an answer that cannot be read is no error of the other jobs."""
    try:
        words = read_end(by_job[job.job_id], job.job_id, job.files.token)
    except (KeyError, ValueError):
        _fail(answer, ValueError(f"the answer about job {job.job_id} could not be read"))
    else:
        if not answer.done():
            answer.set_result(words)


def _fail(answer: asyncio.Future[EndWords], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error if isinstance(error, Exception) else ConnectionError("the question was cancelled"))
