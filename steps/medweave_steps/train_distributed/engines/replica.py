"""One round of one replica, from bytes to bytes: the same functions under every engine, in any process.

A process keeps for the next round what it has opened: the training cases, mapped into memory, with the places of lesions and
vessels in them, the validation cases, the network, and the batches cut ahead for the replica that it has trained last.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from medweave_core.contracts.volume import Triple
from medweave_core.errors import TryAgainError
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.network import build_network, one_logit, takes_slices
from medweave_steps.networks import type_of_class
from medweave_steps.networks.user_code import NetworkCode
from medweave_steps.runtime import environment
from medweave_steps.runtime.imports import require
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.training.data.batch import Batch, Sampler
from medweave_steps.training.data.batches import Batches
from medweave_steps.training.device import choose_device, move_to_device
from medweave_steps.training.distributed.average import packed, unpacked
from medweave_steps.training.loop import memory
from medweave_steps.training.loop.cpu_kernels import replace_kernels
from medweave_steps.training.loop.stepper import Stepper, not_a_number, uses_bfloat16
from medweave_steps.training.loop.validator import Validator
from medweave_steps.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJob:
    """The arguments of every replica; the same for the whole training.

    Attributes:
        config: options of the training that it shares with `train`.
        task: what the model learns.
        replicas: number of replicas.
        rounds: of the training.
        steps_per_round: optimizer steps of each replica in a round.
        learning_rate: peak of the schedule over all rounds.
        architecture: of the model card, as JSON.
        window_shape, overlap: of the sliding window, from the model card.
        window_hu, scaled_range: intensities of the network's input, from the model card; None for MR.
        first_step: steps that the model was trained for before; the sequence of patches continues from there.
        num_threads: compute threads of a replica.
        local_rank: place among the processes of a node; picks the GPU.
        network_code: code of the user that the network is in, which may be run.
    """

    config: Recipe
    task: TrainingTask
    replicas: int
    rounds: int
    steps_per_round: int
    learning_rate: float
    architecture: str
    window_shape: Triple
    overlap: float
    first_step: int
    num_threads: int
    local_rank: int = 0
    window_hu: tuple[float, float] | None = None
    scaled_range: tuple[float, float] = (0.0, 1.0)
    network_code: NetworkCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """The abilities of the process that trains a replica.

    Attributes:
        host: name of the node or pod.
        device: `cpu` or `cuda`.
        bfloat16: whether it would compute in mixed bfloat16.
    """

    host: str
    device: str
    bfloat16: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The result of one replica for one round.

    Attributes:
        weights: packed state dict.
        samples: patches it was trained on.
        loss: mean over its steps.
        learning_rate: of the last step.
        seconds: wall time of the steps, s.
        waited_s: of these, in which it waited for its patches, s.
        host: name of the node or pod that trained it.
    """

    weights: bytes
    samples: int
    loss: float
    learning_rate: float
    seconds: float
    waited_s: float
    host: str


def ability(job: ReplicaJob) -> Ability:
    """Return the abilities of this process; opens the data, so that errors in it are reported before the first round."""
    bench = _bench(job)
    return Ability(
        host=environment.host_name(),
        device=bench.device.type,
        bfloat16=uses_bfloat16(job.config, bench.device, bench.network),
    )


def digest(job: ReplicaJob) -> str:
    """Return the digest of the training cases that this process has opened."""
    return _bench(job).sampler.digest()


def train(
    job: ReplicaJob, round_number: int, replica: int, weights: bytes, remembered: bytes, bfloat16: bool
) -> tuple[Share, bytes]:
    """Train one replica for one round.

    Args:
        round_number: from 0.
        replica: from 0.
        weights: the average of the round before, packed.
        remembered: what this replica returned in the round before, state of its optimizer; empty in the first.
        bfloat16: the forward pass is in mixed bfloat16.
    Returns:
        its result, and the state of its optimizer for the next round.
    Raises:
        InternalError: the loss is not a number.
        TryAgainError: the memory does not hold a step.
    """
    torch = require("torch", extra="train")
    bench, config = _bench(job), job.config
    torch.set_num_threads(job.num_threads)
    bench.network.load_state_dict(unpacked(weights))
    stepper = bench.stepper(job, bfloat16)
    if remembered:
        stepper.restore(unpacked(remembered))
    # For networks with random layers, such as dropout: otherwise the weights would depend on the process and its earlier work.
    torch.manual_seed(int(np.random.SeedSequence((config.seed, round_number, replica)).generate_state(1)[0]))
    batches = bench.batches.of(replica, job, bench)
    losses, samples, started, waited_before = [], 0, time.monotonic(), batches.waited_s
    for number in range(job.steps_per_round):
        step = job.first_step + round_number * job.steps_per_round + number
        rate = stepper.learning_rate
        batch = batches.batch(step)
        with memory.wrap_oom(functools.partial(_exhausted, bench, batch)):
            losses.append(_take_step(stepper, batch, step=step))
        samples += len(batch.case_ids)
    seconds = time.monotonic() - started
    share = Share(
        weights=packed({name: tensor.cpu() for name, tensor in bench.network.state_dict().items()}),
        samples=samples,
        loss=sum(losses) / len(losses),
        learning_rate=rate,
        seconds=seconds,
        waited_s=batches.waited_s - waited_before,
        host=environment.host_name(),
    )
    return share, packed(stepper.state())


def _take_step(stepper: Stepper, batch: Batch, *, step: int) -> float:
    """Return the loss."""
    rate = stepper.learning_rate
    stepper.begin()
    value = stepper.backward(stepper.loss_of(batch))
    if not math.isfinite(value):
        raise not_a_number(value, step=step, blames=[stepper.blame_of(batch)], learning_rate=rate)
    stepper.apply()
    return value


def _exhausted(bench: _Bench, batch: Batch) -> TryAgainError:
    return memory.exhausted_replica(
        patches=len(batch.case_ids),
        num_weights=sum(weight.numel() for weight in bench.network.parameters()),
        peak_bytes=memory.peak_bytes(bench.device),
        on_a_gpu=bench.device.type == "cuda",
    )


def tally(
    job: ReplicaJob,
    replica: int,
    weights: bytes,
    choices: Sequence[Any],
    num_cases: int | None,
    bfloat16: bool,
) -> list[list[Any]]:
    """Return the tallies of this replica's validation cases, every `replicas`-th, with the averaged weights."""
    torch = require("torch", extra="train")
    bench = _bench(job)
    torch.set_num_threads(job.num_threads)
    bench.network.load_state_dict(unpacked(weights))
    bench.network.eval()
    stepper = bench.stepper(job, bfloat16)
    return bench.validator.tallies(stepper.predict, choices, num_cases=num_cases, rank=replica, world_size=job.replicas)


class _Ahead:
    """The batches of the replica that this process trained last; batches are cut ahead until its next round.

    One replica's at a time, since a process that trains them all would keep the batches and data workers of each.
    """

    def __init__(self) -> None:
        self._replica = -1
        self._batches: Batches | None = None

    def of(self, replica: int, job: ReplicaJob, bench: _Bench) -> Batches:
        """Return the batches of a replica."""
        if self._batches is None or self._replica != replica:
            if self._batches is not None:
                self._batches.close()
            self._replica, self._batches = (
                replica,
                Batches(
                    bench.sampler,
                    rank=replica,
                    world_size=job.replicas,
                    num_workers=job.config.data_processes(bench.device, num_threads=job.num_threads),
                    device=bench.device,
                ),
            )
        return self._batches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """The objects that a process keeps open between rounds; the network has the weights that were loaded last."""

    network: Any
    whole: Any
    sampler: Sampler
    validator: Validator
    device: Any
    batches: _Ahead

    def stepper(self, job: ReplicaJob, bfloat16: bool) -> Stepper:
        return Stepper(
            recipe=job.config,
            loss=job.task.open_loss(job.config),
            learning_rate=job.learning_rate,
            num_steps=job.rounds * job.steps_per_round,
            epoch_steps=job.steps_per_round,
            network=self.whole,
            wrapped=self.whole,
            device=self.device,
            uses_bfloat16=bfloat16,
        )


@functools.lru_cache(maxsize=1)
def _bench(job: ReplicaJob) -> _Bench:
    require("torch", extra="train").set_num_threads(job.num_threads)
    device = choose_device(job.config.device, local_rank=job.local_rank)
    prepared = open_prepared(job.config.training_set)
    if job.window_hu is not None:
        prepared = prepared.with_input(window_hu=job.window_hu, scaled_range=job.scaled_range)
    training, validation = job.task.usable_cases(prepared)
    architecture = json.loads(job.architecture)
    network = move_to_device(build_network(architecture, code=job.network_code), device)
    known = type_of_class(architecture["class"])
    replace_kernels(network, known.cpu_kernels if known else ())
    return _Bench(
        network=network,
        whole=one_logit(takes_slices(network, architecture), architecture),
        sampler=job.task.open_sampler(job.config, prepared, training),
        validator=job.task.open_validator(
            job.config, prepared, validation, window_shape=job.window_shape, overlap=job.overlap, device=device
        ),
        device=device,
        batches=_Ahead(),
    )
