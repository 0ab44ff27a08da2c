"""Attempts of a step on Slurm: each attempt is a new job."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.retries.attempts import Attempts
from medweave_connectors.jobs.retries.policy import Checkpoint, Table
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import read_checkpoint
from medweave_connectors.sites.slurm.job import SlurmJob
from medweave_connectors.sites.slurm.script import SlurmJobFiles, StepCommand
from medweave_connectors.sites.slurm.site import SlurmSite


class SlurmAttempts(Attempts):
    """Runs a step's command as a sequence of jobs, one per attempt."""

    def __init__(
        self,
        name: str,
        step: StepCommand,
        site: SlurmSite,
        table: Table,
        submit: Callable[[SlurmJob], Awaitable[tuple[str, int]]],
    ) -> None:
        """`submit` runs a job to its end, as `SlurmJob.run` does, and cancels it on an interruption."""
        super().__init__(name, table, site.closing)
        self._site, self._submit = site, submit
        self._step = dataclasses.replace(step, checkpoint_folder=self.checkpoint_folder)
        self._job: SlurmJob

    async def attempt(self) -> tuple[str, int]:
        """Submit a job and wait for its end."""
        job = self._job = SlurmJob(self.name, self._step, self._site)
        try:
            return await self._submit(job)
        finally:
            self.failure = job.failure
            if not self._step.home:
                own = SlurmJobFiles.next_to(self._step.output_directory, "").folder
                reattached = not job.files.folder.startswith(own)
                self._step = dataclasses.replace(self._step, home=job.files.folder, was_empty=reattached)

    async def find_checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the last job."""
        folder = f"{self._step.output_directory}/{self.checkpoint_folder}"
        return read_checkpoint(await self._site.run_line(commands.checkpoint(folder, self._job.files)))

    def largest_mib(self) -> float | None:
        """Return the memory of the largest node with enough cores, MiB."""
        request: Any = job_requests.request_of(self.name)
        fits = [memory_mib for cores, memory_mib in self._site.nodes if request and cores >= request.cores]
        return max(fits, default=None)
