"""Attempts of a step: repeats its command by the site's retry policy. One loop for all kinds of sites."""

from __future__ import annotations

import asyncio
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from medweave_connectors.host.errors import JobEndedBySite, SiteUnreachable, TimeLimitExceeded
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.retries.policy import (
    Checkpoint,
    FailedAttempt,
    FailureKind,
    Retry,
    Stop,
    Table,
    decide,
    sentence,
)
from medweave_connectors.runlog import console, current
from medweave_connectors.runlog.job import CommandOutcome

# A shared file system may show one machine what another has written a while later (NFS: 30 s by default).
LOOK_PAUSE_S = 12.0


def failed_attempt(job_name: str, kind: FailureKind, exit_code: int) -> FailedAttempt:
    """Return the failed attempt of a job that had the memory that it requested."""
    request = job_requests.request_of(job_name)
    return FailedAttempt(kind=kind, exit_code=exit_code, memory_mib=request.memory_mib if request else 0.0)


def end_attempt(
    job_name: str, outcome: CommandOutcome, *, timed_out: bool, ended_by_site: bool, closing: bool = False
) -> tuple[str, int]:
    """Record the outcome of an attempt. Return the cause of a failure, and the exit code.

    Args:
        closing: the run is being ended.

    Raises:
        CancelledError: this run canceled the job, which did not fail.
        TimeLimitExceeded, JobEndedBySite: see the connector's `run`.
    """
    if (run := current()) is not None:
        run.command_ended(job_name, outcome)
    if closing:
        raise asyncio.CancelledError
    if timed_out:
        raise TimeLimitExceeded(f"{job_name}: {outcome.cause}")
    if ended_by_site:
        raise JobEndedBySite(f"{job_name}: {outcome.cause}")
    return outcome.cause, outcome.exit_code


class Attempts(ABC):
    """Runs a step's command until it succeeds, or the policy stops.

    Attributes:
        checkpoint_folder: name of the folder inside the output folder that outlives an attempt; empty for none.
        failure: of the last attempt, if it failed; `attempt` sets it.
        looks: how often a new checkpoint is looked for.
    """

    looks = 4

    def __init__(self, name: str, table: Table, closing: Callable[[], bool]) -> None:
        """`closing` returns True once the run is being ended."""
        self.name, self._table, self._closing = name, table, closing
        self.checkpoint_folder = job_requests.hints_of(name).checkpoint_folder
        self.failure: FailedAttempt | None = None
        self._failures: list[FailedAttempt] = []

    @abstractmethod
    async def attempt(self) -> tuple[str, int]:
        """Run the command in a clean folder. Return the cause of a failure, and the exit code."""

    @abstractmethod
    async def find_checkpoint(self) -> Checkpoint:
        """Return the state of the checkpoint folder after the last attempt."""

    def largest_mib(self) -> float | None:
        """Return the most memory that an attempt can have, MiB; None if unknown."""
        return None

    async def run(self) -> tuple[str, int]:
        """Run attempts and return the result of the last one.

        Raises:
            SiteConfigError, TimeLimitExceeded, JobEndedBySite, SiteUnreachable: of the last attempt; see the connector's `run`.
        """
        while True:
            error: Exception | None = None
            result, self.failure = ("", 1), None
            try:
                result = await self.attempt()
            except SiteUnreachable as unreachable:
                error, self.failure = unreachable, FailedAttempt(kind=FailureKind.UNKNOWN)
            except Exception as raised:
                error = raised
            if error is None and result[1] in job_requests.hints_of(self.name).success_codes:
                self.failure = None  # the tool calls this exit code a success
            if self.failure is not None and not self._closing():
                self._failures.append(
                    dataclasses.replace(self.failure, checkpoint=await self._checkpoint(self.failure))
                )
                decision = decide(self._failures, self._table, largest_mib=self.largest_mib())
                self._record(decision, error)
                if isinstance(decision, Retry):
                    await self._prepare(decision)
                    continue
            if error is not None:
                raise error
            return result

    def _record(self, decision: Retry | Stop, error: Exception | None) -> None:
        run, last, number = current(), self._failures[-1], len(self._failures)
        if run is None:
            return
        text = sentence(decision, last, next_attempt=number + 1)
        facts: dict[str, Any] = {"failure": last.kind, "exit_code": last.exit_code, "again": False}
        if isinstance(decision, Stop):
            run.job_reaction(self.name, text, show=decision.by_limit, **facts)
            return
        job = run.jobs.get(self.name)
        run.job_recovering(self.name)
        if job is not None and job.outcome is None and error is not None:  # no command has reported why
            console.say(str(error))
        run.job_reaction(self.name, text, show=True, **facts | {"again": True} | dataclasses.asdict(decision))

    async def _prepare(self, decision: Retry) -> None:
        """Prepare the next attempt and wait for its time."""
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

    async def _checkpoint(self, failure: FailedAttempt) -> Checkpoint:
        """Return the checkpoint's state, after several looks if it may appear late."""
        checkpoint = Checkpoint.NONE
        if not self.checkpoint_folder:
            return checkpoint
        for look in range(self.looks):
            if look:
                await asyncio.sleep(LOOK_PAUSE_S)
            try:
                checkpoint = await self.find_checkpoint()
            except Exception:  # the query is repeated
                continue
            # Only after a timeout a checkpoint that appears late would end the step.
            if checkpoint is Checkpoint.NEW or failure.kind is not FailureKind.TIMEOUT:
                break
        return checkpoint
