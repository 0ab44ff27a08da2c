"""Functions that ranks run in tests; in a separate module, because new processes import it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.network import build_network
from medweave_steps.runtime.progress import Progress
from medweave_steps.runtime.signals import Deferred
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.inputs import task_of
from medweave_steps.train.loop import Trainer
from medweave_steps.train.network import architecture
from medweave_steps.training.device import choose_device
from medweave_steps.training.distributed.group import Alone, RankGroup
from medweave_steps.training.loop.energy import RanksEnergy
from medweave_steps.training.loop.history import History
from medweave_steps.training.strategies import Strategy

SUMMANDS = ((1.0, 1e16), (1.0, 1.0), (-1.0, -1e16))
"""By rank; the sum of the second column depends on its order: 1.0 from the left, 0.0 if the last two meet first."""


def talk(job: str, group: Any) -> tuple[Any, ...]:
    """Return what one rank receives from the others."""
    import torch

    mean = group.mean(np.array(SUMMANDS[group.rank]))
    return job, group.world_size, mean.tolist(), group.gather((group.rank, torch.get_num_threads(), os.getpid()))


def refuse(job: int, group: Any) -> None:
    """Raise an error on one rank while the others wait for it."""
    if group.rank == job:
        raise UserInputError("the mask is missing.", seen="none", expected="one", do="add it")
    group.gather(None)


def stall(job: Path, group: Any) -> None:
    """Write the process id and sleep for a minute, which the test does not wait for."""
    (job / f"pid-{group.rank}").write_text(str(os.getpid()))
    time.sleep(60)


class OneOfTwo(Alone):
    """A rank that trains on its share of the patches and exchanges nothing with others."""

    world_size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


def trainer_for(config: TrainConfig, network: Any, group: Any) -> Trainer:
    """Return a training of this network under the strategy of the options; a plain one for a fake group."""
    prepared = open_prepared(config.training_set)
    task = task_of(config, prepared)
    training, validation = task.usable_cases(prepared)
    device = choose_device("cpu")
    is_real = isinstance(group, RankGroup) or config.ranks == 1
    facts = {"num_cases": len(training), "num_channels": len(prepared.cohort.channels)}
    facts["num_validation_cases"] = len(validation)
    waits = config.strategy_options.lost_after_s is None
    strategy = (
        config.open_strategy(**facts, group=group, device=device)
        if is_real
        else Strategy(options=config.strategy_options, training=config.facts(**facts), group=group, device=device)
    )
    return Trainer(
        config=config,
        network=network,
        task=task,
        strategy=strategy,
        sampler=task.open_sampler(config, prepared, training, **config.of_sampler()),
        validator=task.open_validator(
            config, prepared, validation, window_shape=config.window_shape, overlap=0.0, device=device
        ),
        uses_bfloat16=False,
        data_sha256="",
        signals=Deferred(),
        energy=RanksEnergy(group if is_real and waits else Alone(), device),
    )


def seeded(config: TrainConfig, norm: Any, *, channels: int = 1, out_channels: int = 1) -> Any:
    """Return the verb's network with another kind of normalization and the same weights."""
    import torch

    torch.manual_seed(0)
    described = architecture(config, channels=channels, out_channels=out_channels)
    return build_network(described | {"arguments": described["arguments"] | {"norm": norm}})


def run_to_its_end(trainer: Trainer, points: Sequence[dict[str, Any]] = (), history: History | None = None) -> History:
    """Run a training without output; return its curves, which continue from these points."""
    history = history or History(None, list(points))
    trainer.run(history, lambda total, done: Progress("train", unit="epoch", total=total, done=done, quiet=True))
    return history


Step = tuple[float, dict[str, Any], dict[str, Any]]
"""The loss of a step, the gradients, and the running statistics after it."""


def one_step(config: TrainConfig, norm: str, group: Any) -> Step:
    """Take one step of a training.

    Args:
        norm: the kind of normalisation (`BATCH` is the verb's).
    """
    network = seeded(config, norm)
    history = run_to_its_end(trainer_for(config, network, group))
    gradients = {name: tensor.grad.numpy() for name, tensor in network.named_parameters()}
    statistics = {name: tensor.numpy() for name, tensor in network.named_buffers() if "running" in name}
    return history.points[0]["loss"], gradients, statistics


def steps(job: Mapping[str, TrainConfig], group: Any) -> dict[str, Step]:
    """Take one step with each kind of normalisation."""
    return {norm: one_step(config, norm, group) for norm, config in job.items()}
