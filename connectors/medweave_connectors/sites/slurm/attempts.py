"""Attempts of a step on Slurm: each attempt is a new job."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.retries.policy import Table
from medweave_connectors.jobs.retries.submitted import SubmittedAttempts
from medweave_connectors.sites.slurm.job import SlurmJob
from medweave_connectors.sites.slurm.script import StepCommand
from medweave_connectors.sites.slurm.site import SlurmSite


class SlurmAttempts(SubmittedAttempts[SlurmJob]):
    """A step's command as a sequence of Slurm jobs."""

    def __init__(
        self,
        name: str,
        step: StepCommand,
        site: SlurmSite,
        table: Table,
        submit: Callable[[SlurmJob], Awaitable[tuple[str, int]]],
    ) -> None:
        super().__init__(name, table, site.closing, output_directory=step.output_directory, submit=submit)
        self._site = site
        self._step = dataclasses.replace(step, checkpoint_folder=self.checkpoint_folder)

    def new_job(self, *, home: str, was_empty: bool) -> SlurmJob:
        """Return the job of the next attempt, not submitted yet."""
        return SlurmJob(self.name, dataclasses.replace(self._step, home=home, was_empty=was_empty), self._site)

    def largest_mib(self) -> float | None:
        """Return the memory of the largest node with enough cores, MiB."""
        request: Any = job_requests.request_of(self.name)
        fits = [memory_mib for cores, memory_mib in self._site.nodes if request and cores >= request.cores]
        return max(fits, default=None)
