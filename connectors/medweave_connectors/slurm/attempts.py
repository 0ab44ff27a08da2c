"""The attempts at a step: the same command, submitted again where the site's table says so."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from medweave_connectors import requests
from medweave_connectors.errors import SiteUnreachable
from medweave_connectors.reactions.table import (
    Again,
    Checkpoint,
    Failed,
    FailureKind,
    Stop,
    Table,
    decide,
    sentence,
)
from medweave_connectors.record import console, current
from medweave_connectors.slurm import commands
from medweave_connectors.slurm.answers import read_checkpoint
from medweave_connectors.slurm.job import Site, SlurmJob
from medweave_connectors.slurm.script import JobFiles, StepCommand

# A shared file system may show the login node what a node has written a while later (NFS: 30 s by default).
LOOKS, LOOK_PAUSE_S = 4, 12.0


class Attempts:
    """A step's command until it has done well, or nothing more follows from its failure."""

    def __init__(
        self,
        name: str,
        step: StepCommand,
        site: Site,
        table: Table,
        submit: Callable[[SlurmJob], Awaitable[tuple[str, int]]],
    ) -> None:
        """`submit` runs a job to its end, as `SlurmJob.run` does, and cancels it where it is cut off."""
        self.name, self._site, self._table, self._submit = name, site, table, submit
        hints = requests.hints_of(name)
        self._step = dataclasses.replace(step, checkpoint_folder=hints.checkpoint_folder)
        self._failures: list[Failed] = []

    async def run(self) -> tuple[str, int]:
        """The outcome of the last attempt.

        Raises:
            SiteConfigError, TimeLimitExceeded, JobEndedBySite, SiteUnreachable: as the connector's `run`, of the last attempt.
        """
        while True:
            job = SlurmJob(self.name, self._step, self._site)
            error: Exception | None = None
            told = ("", 1)
            try:
                told = await self._submit(job)
            except SiteUnreachable as lost:
                error, job.failure = lost, Failed(kind=FailureKind.UNKNOWN)
            except Exception as failed:
                error = failed
            if job.failure is not None and not self._site.closing():
                self._failures.append(dataclasses.replace(job.failure, checkpoint=await self._checkpoint(job)))
                decision = decide(self._failures, self._table, largest_mib=self._largest_mib())
                self._record(decision, error)
                if isinstance(decision, Again):
                    await self._prepare(decision, job)
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
        run.job_recovering(self.name)
        if last.kind is FailureKind.SUBMIT_REJECTED:  # no command has said why
            console.say(str(error))
        run.job_reaction(self.name, text, tell=True, **facts | {"again": True} | dataclasses.asdict(decision))

    async def _prepare(self, decision: Again, job: SlurmJob) -> None:
        """Makes the next attempt ready and waits for its time."""
        request = requests.request_of(self.name)
        assert request is not None, "an attempt was made without one"
        requests.note_job(self.name, dataclasses.replace(request, memory_mib=decision.memory_mib))
        if not self._step.home:
            own = JobFiles.beside(self._step.output_directory, "").folder
            taken_over = not job.files.folder.startswith(own)
            self._step = dataclasses.replace(self._step, home=job.files.folder, was_empty=taken_over)
        run = current()
        if run is not None:
            run.job_again(self.name, cores=request.cores, memory_mib=decision.memory_mib)
        await asyncio.sleep(decision.after_s)
        if self._site.closing():
            raise asyncio.CancelledError
        if run is not None:
            run.job_started(self.name)

    def _largest_mib(self) -> float | None:
        """Memory of the largest node that has the cores, MiB."""
        request: Any = requests.request_of(self.name)
        fits = [memory_mib for cores, memory_mib in self._site.nodes if request and cores >= request.cores]
        return max(fits, default=None)

    async def _checkpoint(self, job: SlurmJob) -> Checkpoint:
        """What the attempt has left to continue from."""
        if not self._step.checkpoint_folder:
            return Checkpoint.NONE
        assert job.failure is not None
        folder = f"{self._step.output_directory}/{self._step.checkpoint_folder}"
        found = Checkpoint.NONE
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(LOOK_PAUSE_S)
            try:
                found = read_checkpoint(await self._site.ask(commands.checkpoint(folder, job.files)))
            except Exception:  # the site is asked again
                continue
            # Only there a checkpoint that is seen too late would end the step.
            if found is Checkpoint.NEW or job.failure.kind is not FailureKind.TIMEOUT:
                break
        return found
