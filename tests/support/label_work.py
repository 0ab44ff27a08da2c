"""Trainings of several labels that any number of ranks must end with the same weights; new processes import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave_steps.train.config import TrainConfig
from support.rank_work import run_to_its_end, seeded, trainer_for
from support.strategy_work import LEARNING_RATE

Result = dict[str, Any]


def trained(config: TrainConfig, group: Any) -> Result:
    """Return the weights after the last step of plain SGD without normalization over patches, as arrays."""
    import torch

    network = seeded(config, "INSTANCE", channels=2, out_channels=4)
    trainer = trainer_for(config, network, group)
    trainer.stepper.optimiser = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    trainer.stepper.schedule = torch.optim.lr_scheduler.ConstantLR(trainer.stepper.optimiser, factor=1.0)
    history = run_to_its_end(trainer)
    losses = [point["loss"] for point in history.points if "loss" in point]
    dices = [point["dice_edema"] for point in history.points if "dice_edema" in point]
    return {**{name: tensor.numpy() for name, tensor in network.state_dict().items()}, "loss": losses, "dice": dices}


def all_trained(configs: Mapping[str, TrainConfig], group: Any) -> dict[str, Result]:
    """Run all trainings by the same ranks, because starting ranks takes longer than training."""
    return {name: trained(config, group) for name, config in configs.items()}
