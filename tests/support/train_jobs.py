"""Trainings as every rank of `train` gets them."""

from __future__ import annotations

from typing import Any

from medweave_steps.train.config import TrainConfig
from medweave_steps.train.inputs import prepared_for, task_of
from medweave_steps.train.network import plan_network
from medweave_steps.train.rank import TrainJob


def train_job(config: TrainConfig, **fields: Any) -> TrainJob:
    """Return the job of a training with the network that its options name, on one thread per rank."""
    prepared = prepared_for(config)
    network = plan_network(config, task_of(config, prepared), channels=len(prepared.cohort.channels))
    return TrainJob(config=config, network=network, num_threads=1, **fields)
