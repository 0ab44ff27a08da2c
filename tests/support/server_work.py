"""Trainings with a parameter server: ranks as threads of this process, and work for ranks as processes."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from medweave_steps.train.loop import Trainer
from medweave_steps.train.rank import TrainJob, train_on_rank
from medweave_steps.training.distributed.aggregation import Vector, mean_gradient
from medweave_steps.training.distributed.group import RankGroup
from medweave_steps.training.distributed.transports import TransportName, open_transport
from medweave_steps.training.distributed.transports.messages import SERVER, Arrival, Message
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


class Pace:
    """The order of the steps of workers in threads, of which the last is slow.

    Attributes:
        steps: steps that each worker has begun, by its rank.
        reached: notified after each step that begins; its lock is that of `steps`.
        before_slow_step: called before each step of the last worker, with the lock.
    """

    def __init__(self, num_workers: int) -> None:
        self.steps = dict.fromkeys(range(1, num_workers + 1), 0)
        self.reached = threading.Condition()
        self.before_slow_step: Callable[[], None] = lambda: None

    def prepare(self, trainer: Trainer, rank: int) -> None:
        """Count the steps of a worker."""
        if rank:
            strategy: Any = trainer.strategy
            compute = strategy._compute
            strategy._compute = lambda *batch: (self._begin(rank), compute(*batch))[1]

    def _begin(self, rank: int) -> None:
        with self.reached:
            if rank == max(self.steps):
                self.before_slow_step()
            self.steps[rank] += 1
            self.reached.notify_all()


@dataclass(slots=True, kw_only=True)
class Straggling:
    """Times of a training whose last worker computes slowly.

    Attributes:
        sleep_s: pause in each step of a worker, s.
        slowdown: factor of that of the last one.
        rounds: time of each synchronous step on the server, s.
        computed: time of each step of a worker, by its rank, s.
        updates: times at which the asynchronous server took an update, s.
        ends: times at which a worker converged, s.
    """

    sleep_s: float
    slowdown: float = 4
    rounds: list[float] = field(default_factory=list)
    computed: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    updates: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def train(self, case: Case) -> Trainer:
        """Train; return the trainer of the server."""
        server, *_ = train_in_threads(case, prepare=self._prepare)
        return server

    def updates_per_s(self, server: Trainer) -> float:
        """Return the updates of all workers per second, until the first worker has converged."""
        config = server.config
        if self.updates:
            seconds = self.ends[0] - self.updates[0] + self.sleep_s * config.epoch_steps
            return sum(moment <= self.ends[0] for moment in self.updates) / seconds
        return (config.ranks - 1) * config.steps // config.epoch_steps / server.state.train_seconds

    def _prepare(self, trainer: Trainer, rank: int) -> None:
        strategy: Any = trainer.strategy
        if rank:
            pause_s = self.sleep_s * (self.slowdown if rank == trainer.config.ranks - 1 else 1)
            compute = strategy._compute
            strategy._compute = lambda *batch: _timed(
                lambda: (compute(*batch), time.sleep(pause_s))[0], self.computed[rank]
            )
        elif strategy.serves:
            receive = strategy._transport.receive_any
            strategy._transport.receive_any = lambda **timeout: self._record(receive(**timeout))
        else:
            take_step = strategy.take_step
            strategy.take_step = lambda *batch, **facts: _timed(lambda: take_step(*batch, **facts), self.rounds)

    def _record(self, arrival: Arrival | None) -> Arrival | None:
        message = arrival.message if arrival else None
        if message is not None and message.kind == "update":
            self.updates.append(time.monotonic())
        elif message is not None and message.kind == "report" and json.loads(message.blob)["is_last"]:
            self.ends.append(time.monotonic())
        return arrival


def _timed(call: Callable[[], Any], seconds: list[float]) -> Any:
    began = time.monotonic()
    result = call()
    seconds.append(time.monotonic() - began)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Synchronous rounds without any training.

    Attributes:
        transport: name.
        size: numbers in a vector, float32.
        number: of rounds that are timed.
    """

    transport: TransportName
    size: int
    number: int


def timed_rounds(job: Rounds, group: RankGroup) -> dict[str, float]:
    """Average a vector of each worker on the server in each round; return the time and bytes of a round."""
    transport = open_transport(job.transport, group)
    vector: Vector = np.full(job.size, group.rank, np.float32)
    began = time.monotonic()
    for number in range(job.number + 1):
        if number == 1:
            began = time.monotonic()  # the first round makes connections
        if group.rank:
            transport.send(SERVER, Message(kind="update", vector=vector))
            transport.receive()
            continue
        workers = range(1, group.world_size)
        messages = [transport.receive(worker) for worker in workers]
        mean = mean_gradient([message.vector for message in messages if message.vector is not None])
        for worker in workers:
            transport.send(worker, Message(kind="state", vector=mean))
    group.gather(None)
    seconds = (time.monotonic() - began) / job.number
    transport.close()
    return {"seconds_per_round": round(seconds, 4), "bytes_per_round": transport.num_bytes / (job.number + 1)}


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
