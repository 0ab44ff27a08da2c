"""The attempts at a step: the same command once more where the site's table says so. One loop for all kinds of sites."""

from __future__ import annotations

import asyncio
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from medweave_connectors.host.errors import SiteUnreachable
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.retries.policy import (
    Again,
    Checkpoint,
    Failed,
    FailureKind,
    Stop,
    Table,
    decide,
    sentence,
)
from medweave_connectors.runlog import console, current

# A shared file system may show one machine what another has written a while later (NFS: 30 s by default).
LOOK_PAUSE_S = 12.0


class Attempts(ABC):
    """A step's command until it has done well, or nothing more follows from its failure.

    Attributes:
        checkpoint_folder: name of the folder inside the output folder that outlives an attempt; empty for none.
        failure: of the last attempt, where it has failed and is over; `attempt` sets it.
        looks: how often a checkpoint that would be continued is looked for.
    """

    looks = 4

    def __init__(self, name: str, table: Table, closing: Callable[[], bool]) -> None:
        """`closing` is true once the run is being ended."""
        self.name, self._table, self._closing = name, table, closing
        self.checkpoint_folder = job_requests.hints_of(name).checkpoint_folder
        self.failure: Failed | None = None
        self._failures: list[Failed] = []

    @abstractmethod
    async def attempt(self) -> tuple[str, int]:
        """Runs the command in a clean folder to its end: the cause of a failure, and the exit code."""

    @abstractmethod
    async def left(self) -> Checkpoint:
        """What the last attempt has left to continue from."""

    def largest_mib(self) -> float | None:
        """The most memory that an attempt can have, MiB; None where that is not known."""
        return None

    async def run(self) -> tuple[str, int]:
        """The outcome of the last attempt.

        Raises:
            SiteConfigError, TimeLimitExceeded, JobEndedBySite, SiteUnreachable: as the connector's `run`, of the last attempt.
        """
        while True:
            error: Exception | None = None
            told, self.failure = ("", 1), None
            try:
                told = await self.attempt()
            except SiteUnreachable as lost:
                error, self.failure = lost, Failed(kind=FailureKind.UNKNOWN)
            except Exception as failed:
                error = failed
            if error is None and told[1] in job_requests.hints_of(self.name).success_codes:
                self.failure = None  # the tool calls this exit code a success
            if self.failure is not None and not self._closing():
                self._failures.append(
                    dataclasses.replace(self.failure, checkpoint=await self._checkpoint(self.failure))
                )
                decision = decide(self._failures, self._table, largest_mib=self.largest_mib())
                self._record(decision, error)
                if isinstance(decision, Again):
                    await self._prepare(decision)
                    continue
            if error is not None:
                raise error
            return told

    def _record(self, decision: Again | Stop, error: Exception | None) -> None:
        run, last, number = current(), self._failures[-1], len(self._failures)
        if run is None:
            return
        text = sentence(decision, last, next_attempt=number + 1)
        facts: dict[str, Any] = {"failure": last.kind, "exit_code": last.exit_code, "again": False}
        if isinstance(decision, Stop):
            run.job_reaction(self.name, text, tell=decision.in_spite, **facts)
            return
        job = run.jobs.get(self.name)
        run.job_recovering(self.name)
        if job is not None and job.outcome is None and error is not None:  # no command has said why
            console.say(str(error))
        run.job_reaction(self.name, text, tell=True, **facts | {"again": True} | dataclasses.asdict(decision))

    async def _prepare(self, decision: Again) -> None:
        """Makes the next attempt ready and waits for its time."""
        request, run = job_requests.request_of(self.name), current()
        if request is not None:
            job_requests.note_job(self.name, dataclasses.replace(request, memory_mib=decision.memory_mib))
            if run is not None:
                run.job_again(self.name, cores=request.cores, memory_mib=decision.memory_mib)
        await asyncio.sleep(decision.after_s)
        if self._closing():
            raise asyncio.CancelledError
        if run is not None:
            run.job_started(self.name)

    async def _checkpoint(self, failure: Failed) -> Checkpoint:
        """What the attempt has left; where it may show late, after several looks."""
        found = Checkpoint.NONE
        if not self.checkpoint_folder:
            return found
        for look in range(self.looks):
            if look:
                await asyncio.sleep(LOOK_PAUSE_S)
            try:
                found = await self.left()
            except Exception:  # the site is asked again
                continue
            # Only there a checkpoint that is seen too late would end the step.
            if found is Checkpoint.NEW or failure.kind is not FailureKind.TIMEOUT:
                break
        return found
