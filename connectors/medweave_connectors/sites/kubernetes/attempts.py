"""The attempts at a step with `mode: job`: each is a Job of its own, with a new name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from medweave_connectors.jobs.retries.attempt_script import look_for_checkpoint, read_checkpoint
from medweave_connectors.jobs.retries.attempts import Attempts
from medweave_connectors.jobs.retries.policy import Checkpoint, Table
from medweave_connectors.sites.kubernetes.job import KubernetesJob
from medweave_connectors.sites.kubernetes.job_site import JobSite
from medweave_connectors.sites.pods.exec.step import Step


class JobAttempts(Attempts):
    """A step's command as one Job after the other."""

    def __init__(
        self,
        step: Step,
        site: JobSite,
        table: Table,
        submit: Callable[[KubernetesJob], Awaitable[tuple[str, int]]],
    ) -> None:
        """`submit` runs a Job to its end, as `KubernetesJob.run` does, and removes it where it is cut off."""
        super().__init__(step.name, table, site.closing)
        self._step, self._site, self._submit = step, site, submit
        self._home, self._was_empty = "", False
        self._job: KubernetesJob

    async def attempt(self) -> tuple[str, int]:
        """Makes a Job and waits for its end."""
        job = self._job = KubernetesJob(self._step, self._site, home=self._home, was_empty=self._was_empty)
        try:
            return await self._submit(job)
        finally:
            self.failure = job.failure
            if not self._home:
                self._home, self._was_empty = job.files.folder, job.taken_over

    async def find_checkpoint(self) -> Checkpoint:
        """What the last Job has left, as the standing pod sees it."""
        folder = f"{self._step.output_directory}/{self.checkpoint_folder}"
        text, _ = await self._site.ask("; ".join(look_for_checkpoint(folder, since=self._job.files.begun)))
        return read_checkpoint(text.splitlines())
