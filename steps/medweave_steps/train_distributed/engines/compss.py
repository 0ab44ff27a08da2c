"""Tasks of the COMPSs runtime: one per replica and round, averaged on the master.

Started by `runcompss` (see `medweave_steps.compss`) they run on its workers. Started by plain Python, pycompss runs them here, in
order; the report says which one it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from medweave_core.errors import BackendMissingError, StepError
from medweave_steps.train_distributed.engines.replica import Ability, ReplicaJob, Share


def require_pycompss() -> None:
    """Raise an error if the Python binding pycompss is not installed.

    Raises:
        BackendMissingError: it is not; no other engine is used instead.
    """
    try:
        importlib.import_module("pycompss.api.task")
    except ImportError as error:
        raise BackendMissingError(
            "--engine compss is not available on this machine.",
            seen=str(error),
            expected="a COMPSs installation with an importable Python binding (pycompss)",
            do="run the step at a site with COMPSs (`engine: compss` of a medweave.compss deployment), "
            "or choose --engine ddp or in-order",
        ) from error


class CompssEngine:
    """An engine that submits tasks and waits for them in the order of the replicas; the runtime decides where they run."""

    def __init__(self, job: ReplicaJob) -> None:
        require_pycompss()
        self._tasks = importlib.import_module("medweave_steps.train_distributed.engines.compss_tasks")
        self._api = importlib.import_module("pycompss.api.api")
        self.job, self._replicas = job, range(job.replicas)
        self._memories = [self._tasks.Parcel(b"") for _ in self._replicas]

    def abilities(self) -> list[Ability]:
        """Return the abilities of the processes that run the first tasks; others may run later ones."""
        return self._collected([self._tasks.ability_task(self.job, number) for number in self._replicas], spent=[])

    def train(self, round_number: int, weights: bytes, bfloat16: bool) -> list[Share]:
        """Train all replicas: submit all tasks of a round, then wait for them in order."""
        parcel, before, submitted = self._tasks.Parcel(weights), list(self._memories), []
        for number in self._replicas:
            share, self._memories[number] = self._tasks.train_task(
                self.job, round_number, number, parcel, before[number], bfloat16
            )
            submitted.append(share)
        return self._collected(submitted, spent=[parcel, *before])

    def tallies(
        self, weights: bytes, choices: Sequence[Any], num_cases: int | None, bfloat16: bool
    ) -> list[list[list[Any]]]:
        """Return the tallies; submits all tasks before it waits for the first."""
        parcel, how = self._tasks.Parcel(weights), self._tasks.Parcel((tuple(choices), num_cases))
        submitted = [self._tasks.tally_task(self.job, number, parcel, how, bfloat16) for number in self._replicas]
        return self._collected(submitted, spent=[parcel, how])

    def memories(self) -> list[bytes]:
        """Fetch the optimizer states to the master; each replaces its future, also for the next round's task."""
        self._memories = [self._api.compss_wait_on(memory) for memory in self._memories]
        return [memory.content for memory in self._memories]

    def restore(self, memories: Sequence[bytes]) -> None:
        """Store the optimizer states; they are sent with the tasks of the next round."""
        self._memories = [self._tasks.Parcel(memory) for memory in memories]

    def card_facts(self) -> dict[str, Any]:
        """Return whether the runtime ran the tasks, or this process did."""
        context = importlib.import_module("pycompss.util.context").CONTEXT
        return {"compss_runtime": bool(context.in_pycompss())}

    def _collected(self, submitted: Sequence[Any], *, spent: Sequence[Any]) -> list[Any]:
        """Return the results in order; objects that no later task reads are deleted on all machines."""
        contents = [self._api.compss_wait_on(future).content for future in submitted]
        for parcel in spent:
            self._api.compss_delete_object(parcel)
        for content in contents:
            if isinstance(content, StepError):
                raise content
        return contents
