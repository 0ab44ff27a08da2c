"""Trainings with a parameter server: ranks as threads of this process, and work for ranks as processes."""

from __future__ import annotations

import datetime
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from medweave_steps.train.command import TrainJob, train_on_rank
from medweave_steps.train.loop import Trainer
from medweave_steps.training.distributed.group import RankGroup
from medweave_steps.training.loop.checkpoint import read_checkpoint
from medweave_steps.training.loop.history import History
from medweave_steps.training.loop.stepper import Stepper
from support.rank_work import run_to_its_end
from support.strategy_work import Case, network_of, trainer_of

TIMEOUT_S = 60.0
needs_open_mpi = pytest.mark.skipif(
    shutil.which("ompi-server") is None, reason="no Open MPI 4 here (apt-get install openmpi-bin)"
)
ASYNC_ORDER = [(2, "update"), (2, "report"), (1, "update"), (1, "report"), (2, "update"), (2, "converged"), (1, "update"),
               (1, "converged")]  # fmt: skip
"""Arrivals of two workers with two epochs each."""


class ThreadRanks:
    """What the ranks of one training share: a place for the item of each rank, and a barrier."""

    def __init__(self, world_size: int) -> None:
        import torch

        self.world_size = world_size
        self.items: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=TIMEOUT_S)
        self.store = torch.distributed.HashStore()


class ThreadGroup(RankGroup):
    """A rank that is a thread."""

    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        import torch

        self.rank, self.local_rank, self.world_size, self.unresponsive = rank, rank, ranks.world_size, frozenset()
        self.host, self._ranks = "127.0.0.1", ranks
        timeout = datetime.timedelta(seconds=TIMEOUT_S)
        self.process_group = torch.distributed.ProcessGroupGloo(ranks.store, rank, ranks.world_size, timeout)

    def gather(self, item: Any) -> list[Any]:
        """Return every rank's item in order of rank."""
        self._ranks.items[self.rank] = item
        self._ranks.barrier.wait()
        items = list(self._ranks.items)
        self._ranks.barrier.wait()
        return items

    def mean(self, values: Any) -> Any:
        """Return the mean, summed in order of rank."""
        return sum(self.gather(values), np.zeros_like(values)) / self.world_size


def train_in_threads(
    case: Case, *, prepare: Callable[[Trainer, int], None] | None = None, history: History | None = None
) -> list[Trainer]:
    """Train with one thread for each rank of the options; return the trainers of all ranks.

    Args:
        prepare: called with each trainer and its rank before its first step.
        history: of rank 0.
    """
    ranks = ThreadRanks(case.config.ranks)
    trainers: list[Any] = [None] * ranks.world_size
    networks = [network_of(case) for _ in trainers]  # not in the threads, which share torch's random numbers
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            trainer = trainers[rank] = trainer_of(case, ThreadGroup(ranks, rank), networks[rank])
            points = trainer.restore(read_checkpoint(case.resume)) if case.resume else []
            if prepare is not None:
                prepare(trainer, rank)
            trainer.points = run_to_its_end(trainer, points, history if rank == 0 else None).points
        except BaseException as error:
            errors.append(error)
            ranks.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(ranks.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not errors:
            thread.join(0.05)
    if errors:
        raise errors[0]
    return trainers


def weights_of(trainer: Trainer) -> dict[str, Any]:
    """Return the weights of a trainer as arrays."""
    return {name: tensor.numpy().copy() for name, tensor in trainer.network.state_dict().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A training in which a rank is killed in a step, from 1."""

    job: TrainJob
    rank: int
    step: int


def trained_with_a_kill(kill: Kill, group: Any) -> Any:
    """Train by the verb; return the results, the notices and the ranks of the report."""
    backward, begun = Stepper.backward, itertools.count(1)

    def backward_or_die(self: Stepper, *arguments: Any) -> float:
        if group.rank == kill.rank and next(begun) == kill.step:
            os.kill(os.getpid(), signal.SIGKILL)
        return backward(self, *arguments)

    Stepper.backward = backward_or_die  # type: ignore[method-assign]
    outcome = train_on_rank(kill.job, group)
    return None if outcome is None else (outcome[0], outcome[1].notices, [facts.rank for facts in outcome[1].ranks])


def scripted(order: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """Return the content of a record of arrivals of two workers."""
    return {"version": 1, "workers": 2, "events": [list(event) for event in order]}
