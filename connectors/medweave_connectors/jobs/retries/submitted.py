"""Attempts of a step at a site with a queue, such as Slurm: each attempt is a new job."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from medweave_connectors.jobs.retries.attempts import Attempts
from medweave_connectors.jobs.retries.policy import Checkpoint, FailedAttempt, Table


class SubmittedJob(Protocol):
    """The job of one attempt.

    Attributes:
        failure: set if the job has failed; input of the retry policy.
    """

    failure: FailedAttempt | None

    @property
    def folder(self) -> str:
        """Return the folder of the job's files, at the site."""

    @property
    def is_reattached(self) -> bool:
        """Return True if an earlier driver submitted the job."""

    async def find_checkpoint(self, folder: str) -> Checkpoint:
        """Return the state of the checkpoint folder after the job."""


Job = TypeVar("Job", bound=SubmittedJob)


class SubmittedAttempts(Attempts, Generic[Job]):
    """A step's command as a sequence of jobs, one per attempt."""

    def __init__(
        self,
        name: str,
        table: Table,
        closing: Callable[[], bool],
        *,
        output_directory: str,
        submit: Callable[[Job], Awaitable[tuple[str, int]]],
    ) -> None:
        """`submit` runs a job to its end and returns its result; it ends the job if it is interrupted."""
        super().__init__(name, table, closing)
        self._checkpoints = f"{output_directory}/{self.checkpoint_folder}"
        self._submit = submit
        self._home, self._was_empty = "", False
        self._last: Job

    @abstractmethod
    def new_job(self, *, home: str, was_empty: bool) -> Job:
        """Return the job of the next attempt, not submitted yet.

        Args:
            home: folder of the files of the step's first job; empty for the first job itself.
            was_empty: an earlier driver submitted the first job; only a job with an empty output folder is re-attached.
        """

    async def attempt(self) -> tuple[str, int]:
        """Submit a job and wait for its end."""
        job = self._last = self.new_job(home=self._home, was_empty=self._was_empty)
        try:
            return await self._submit(job)
        finally:
            self.failure = job.failure
            if not self._home:
                self._home, self._was_empty = job.folder, job.is_reattached

    async def find_checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the last job."""
        return await self._last.find_checkpoint(self._checkpoints)
