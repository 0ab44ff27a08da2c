"""The tasks of the COMPSs runtime; its workers import this module by name. Importing it needs pycompss.

Everything that is large travels inside a `Parcel`: the runtime hands objects of a class over as files, and only text and numbers
within its messages. A task returns a StepError instead of raising it: the runtime would run a failed task four times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycompss.api.task import task

from medweave_core.errors import StepError
from medweave_steps.runtime.verb import as_step_error
from medweave_steps.train_distributed.engines import replica
from medweave_steps.train_distributed.engines.replica import ReplicaJob


@dataclass(frozen=True, slots=True)
class Parcel:
    """A wrapper for an object that is sent to or from a task.

    Attributes:
        content: the object that is sent.
    """

    content: Any


@task(returns=1)  # type: ignore[untyped-decorator]
def ability_task(job: ReplicaJob, number: int) -> Parcel:
    """Run `replica.ability` as a task, on the worker that the runtime chooses; tasks of one replica tend to stay there."""
    return Parcel(_attempt(replica.ability, job))


@task(returns=2)  # type: ignore[untyped-decorator]
def train_task(
    job: ReplicaJob, round_number: int, number: int, weights: Parcel, memory: Parcel, bfloat16: bool
) -> tuple[Parcel, Parcel]:
    """Run `replica.train` as a task; its second result, the optimizer state, goes to the next round's task of the same replica."""
    outcome = _attempt(replica.train, job, round_number, number, weights.content, memory.content, bfloat16)
    if isinstance(outcome, StepError):
        return Parcel(outcome), Parcel(b"")
    share, next_memory = outcome
    return Parcel(share), Parcel(next_memory)


@task(returns=1)  # type: ignore[untyped-decorator]
def tally_task(job: ReplicaJob, number: int, weights: Parcel, how: Parcel, bfloat16: bool) -> Parcel:
    """Run `replica.tally` as a task.

    Args:
        how: choices of the postprocessing, and the number of cases or None.
    """
    choices: Sequence[Any]
    choices, num_cases = how.content
    return Parcel(_attempt(replica.tally, job, number, weights.content, choices, num_cases, bfloat16))


def _attempt(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return as_step_error(error)
