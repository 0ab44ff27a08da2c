"""Trainings that any number of ranks must end with the same weights; a separate module, because new processes import it.

Plain SGD, no normalisation over patches, a loss that is the mean of its patches' losses: nothing is left that would depend on how
the patches are dealt to ranks, but for the order of sums.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.errors import StepError
from medweave_steps.runtime.environment import NodeGroup
from medweave_steps.runtime.options import build_config
from medweave_steps.runtime.signals import deferred
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.loop import Trainer
from medweave_steps.train.network import seeded_network
from medweave_steps.train.rank import TrainJob, train_on_rank
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.distributed.launch import run_ranks
from medweave_steps.training.loop.checkpoint import read_checkpoint
from medweave_steps.training.loop.history import History
from medweave_steps.training.loop.stepper import Stepper
from support.one_label import TASK
from support.rank_work import run_to_its_end, seeded, trainer_for
from support.train_jobs import train_job

LEARNING_RATE = 0.1


def options(data: Path, **changes: Any) -> TrainConfig:
    """Return the options of twenty steps on tiny patches."""
    values: dict[str, Any] = {
        "training_set": data, "output": data / "m", "steps": 20, "batch_size": 4, "patch_shape": (8, 8, 8),
        "channels": (4, 8), "strides": (2,), "window_shape": (24, 20, 16), "epoch_steps": 10, "validation_interval": 2,
        "precision": "float32",
    }  # fmt: skip
    return build_config(TrainConfig, values | changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training.

    Attributes:
        norm: MONAI's name of the normalisation, with its arguments.
        dtype: torch's name of the type of the weights.
        recipe: the verb's own: its normalisation and loss, and Adam.
        resume: the checkpoint to resume from.
    """

    config: TrainConfig
    norm: Any = "INSTANCE"
    dtype: str = "float32"
    recipe: bool = False
    resume: Path | None = None


VOLUMES: dict[str, Any] = {
    "epochs": 10, "batch_size": 2, "patch_shape": (24, 20, 16), "steps": 20, "epoch_steps": 2, "validation_interval": 5,
}  # fmt: skip
"""Three whole cases, two at a time: in every other step one rank has none."""

KINDS: dict[str, dict[str, Any]] = {
    "instance": {},
    "group": {"norm": ("GROUP", {"num_groups": 2})},
    "uneven": {},
    "accumulated": {},
    "float64": {"dtype": "float64"},
}
"""The results in which strategies are compared."""
KIND_OPTIONS: dict[str, dict[str, Any]] = {
    "uneven": {"batch_size": 5},
    "accumulated": {"batch_size": 5, "accumulate": 2},
}
"""Five patches for two ranks; they take these one and two at a time, and one and one."""


def case_of(data: Path, kind: str, *, resume: Path | None = None, **changes: Any) -> Case:
    """Return the training of one of the kinds."""
    config = options(data, **KIND_OPTIONS.get(kind, {}) | changes)
    return Case(config=config, resume=resume, **KINDS[kind])


def by_ranks(work: Any, job: Any, *, ranks: int, lost_after_s: float | None = None) -> Any:
    """Run a job on some ranks; return rank 0's result."""
    return run_ranks(
        work, job, num_here=ranks, num_threads=1, device="cpu", node_group=NodeGroup(), lost_after_s=lost_after_s
    )


def by_two_ranks(work: Any, job: Any) -> Any:
    """Run a job on two ranks; return rank 0's result."""
    return by_ranks(work, job, ranks=2)


def largest_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest difference of the weights that both trainings have."""
    names = one.keys() & other.keys() - {"loss", "bytes"}
    assert names
    return float(max(np.abs(one[name] - other[name]).max() for name in names))


def network_of(case: Case) -> Any:
    """Return the network with the weights before the first step."""
    import torch

    if case.recipe:
        return seeded_network(case.config, TASK)
    return seeded(case.config, case.norm).to(getattr(torch, case.dtype))


def trainer_of(case: Case, group: Any, network: Any = None) -> Trainer:
    """Return the verb's training, with the network, loss and optimiser that a proof of equality needs.

    Args:
        network: that of the case by default.
    """
    import torch
    from monai.losses import DiceCELoss

    network = network or network_of(case)
    trainer = trainer_for(case.config, network, group)
    if case.recipe:
        return trainer
    stepper = trainer.stepper
    stepper.loss = DiceCELoss(sigmoid=True, batch=False, smooth_nr=1.0, smooth_dr=1.0)
    stepper.optimiser = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    stepper.schedule = torch.optim.lr_scheduler.ConstantLR(stepper.optimiser, factor=1.0)
    return trainer


def start(case: Case) -> dict[str, Any]:
    """Return the weights before the first step, as arrays."""
    return {name: tensor.numpy() for name, tensor in network_of(case).state_dict().items()}


def trained(case: Case, group: Any) -> dict[str, Any]:
    """Return the weights after the last step, as arrays; under `loss` those of the curve, under `bytes` the synchronized bytes."""
    trainer = trainer_of(case, group)
    points = trainer.restore(read_checkpoint(case.resume)) if case.resume else []
    history = run_to_its_end(trainer, points)
    weights = {name: tensor.numpy() for name, tensor in trainer.network.state_dict().items()}
    losses = [point["loss"] for point in history.points if "loss" in point]
    return {**weights, "loss": losses, "bytes": trainer.state.synchronised_bytes}


def all_trained(cases: Mapping[str, Case], group: Any) -> dict[str, dict[str, Any]]:
    """Run all trainings by the same ranks, because starting ranks takes longer than training; return the results."""
    return {name: _by_ranks_or_one(case, group) for name, case in cases.items()}


def _by_ranks_or_one(case: Case, group: Any) -> dict[str, Any]:
    if case.config.strategy != "single":
        return trained(case, group)
    result = trained(case, Alone()) if group.rank == 0 else {}
    group.gather(None)  # the others wait for the checkpoints that it writes
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A training that is reached by a signal.

    Attributes:
        rank: the one that gets it.
        step: in which it gets it, from 1: it has a loss, but the weights are those before.
    """

    case: Case
    rank: int
    step: int
    number: signal.Signals

    def __str__(self) -> str:
        return f"{self.number.name} to rank {self.rank} in step {self.step}"


def stopped(job: Stop, group: Any) -> None:
    """Train in a separate process, which the signal ends."""
    apply, begun = Stepper.apply, itertools.count(1)

    def apply_or_stop(self: Stepper, **norm: Any) -> None:
        if next(begun) == job.step and group.rank == job.rank:
            os.kill(os.getpid(), job.number)
        apply(self, **norm)

    Stepper.apply = apply_or_stop  # type: ignore[method-assign]
    with deferred() as signals:
        trainer = trainer_of(job.case, group)
        trainer.signals = signals
        run_to_its_end(trainer)


def drawn_and_drawn_again(case: Case, group: Any) -> list[tuple[list[float], list[float]]]:
    """Return each rank's random numbers after a checkpoint, and those after a resume from it."""
    import torch

    trainer, folder = trainer_of(case, group), case.config.checkpoint_folder
    assert folder is not None
    torch.manual_seed(100 + group.rank)
    trainer.save(folder, History(None, []))
    drawn = torch.rand(3).tolist()
    group.gather(None)  # rank 0 has written
    torch.manual_seed(7)
    trainer_of(case, group).restore(read_checkpoint(folder))
    return group.gather((drawn, torch.rand(3).tolist()))


def refusals(jobs: Mapping[str, Sequence[TrainConfig]], group: Any) -> dict[str, list[Any]]:
    """Return each rank's refusal of a training whose ranks have different options."""
    return {name: group.gather(_refusal(configs[group.rank], group)) for name, configs in jobs.items()}


def trained_and_refused(
    job: tuple[Mapping[str, Case], Mapping[str, Sequence[TrainConfig]], Sequence[TrainJob]], group: Any
) -> Any:
    """Return the results of `all_trained`, of `refusals`, and of the trainings by the verb (with their ranks)."""
    trained, refused = all_trained(job[0], group), refusals(job[1], group)
    outcomes = [outcome for outcome in (train_on_rank(training, group) for training in job[2]) if outcome is not None]
    return trained, refused, [(results, context.ranks) for results, context in outcomes]


def trained_and_drawn(job: tuple[Mapping[str, Case], Mapping[str, Case]], group: Any) -> Any:
    """Return the results of `all_trained`, and `drawn_and_drawn_again` of each of some others, by the same ranks."""
    return all_trained(job[0], group), {name: drawn_and_drawn_again(case, group) for name, case in job[1].items()}


def trained_and_reported(job: tuple[Mapping[str, Case], TrainJob], group: Any) -> Any:
    """Return the results of `all_trained`; then the verb's whole work: its results, and the samples of each rank."""
    trained = all_trained(job[0], group)
    outcome = train_on_rank(job[1], group)
    return None if outcome is None else (trained, outcome[0], [facts.samples for facts in outcome[1].ranks])


def _refusal(config: TrainConfig, group: Any) -> dict[str, str] | None:
    folder = config.training_set
    try:
        train_on_rank(train_job(config, folder=folder, log_folder=folder), group)
    except StepError as error:
        return {part: getattr(error, part) for part in ("what", "seen", "expected", "do")}
    return None


def with_changes(config: TrainConfig, **changes: Any) -> tuple[TrainConfig, TrainConfig]:
    """Return the options of rank 0, and those of rank 1, which differ."""
    return config, dataclasses.replace(config, **changes)
