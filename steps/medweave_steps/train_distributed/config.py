"""The options of `train-distributed`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_steps.runtime.options import check_option, option
from medweave_steps.training.recipe import (
    MONITOR_INTERVAL,
    MONITOR_INTERVAL_S,
    Recipe,
    check_monitor_interval,
    options_of,
)

_NOT_NUMERIC = (
    "training_set",
    "output",
    "training_log",
    "trained_model",
    "continues_log",
    "engine",
    "threads_per_replica",
    "checkpoint_folder",
    "resume_from",
    "data_workers",
    "allow_code",
    "monitor_interval",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedConfig(Recipe):
    """Options of `train-distributed`."""

    trained_model: Path = option("model folder of train or bundle to continue training from")
    continues_log: Path | None = option("training log of that model; its curves are extended", default=None)

    rounds: int = option("number of rounds (local training, then weight averaging)", default=5)
    steps_per_round: int = option("optimizer steps of each replica per round", default=20)
    replicas: int = option("number of replicas; each takes a share of the patches of a step", default=2)
    learning_rate: float = option("peak learning rate of the one-cycle schedule over all rounds (Adam)", default=1e-3)
    engine: Literal["auto", "in-order", "ddp", "compss"] = option(
        "how replicas are distributed: in-order trains them one after another in one process; ddp uses processes on the nodes of "
        "the node group; compss uses COMPSs tasks; auto uses the engine of the deployment (MEDWEAVE_ENGINE), else in-order",
        default="auto",
    )
    allow_code: bool = option(
        "run the code of a network that is not part of medweave (scripts/ of the model folder), with your rights",
        default=False,
    )
    threads_per_replica: int | None = option(
        "compute threads of each replica (default: --num-threads divided among the replicas that run at once on a node)",
        default=None,
    )
    monitor_interval: float = option(MONITOR_INTERVAL, default=MONITOR_INTERVAL_S)
    checkpoint_folder: Path | None = option("folder for checkpoint.pt, written after every round", default=None)
    resume_from: Path | None = option(
        "checkpoint, or folder with checkpoint.pt, to resume from exactly, with any --engine (default: the newest complete "
        "checkpoint of MEDWEAVE_RESUME_FROM)",
        default=None,
    )

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)  # `super()` does not find its class in a dataclass with slots
        check_monitor_interval(self.monitor_interval)
        for name in ("rounds", "steps_per_round"):
            check_option(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        expected = f"1 to {self.batch_size}: every replica needs at least one patch of --batch-size"
        check_option(1 <= self.replicas <= self.batch_size, "replicas", self.replicas, expected)
        check_option(0 < self.learning_rate < math.inf, "learning_rate", self.learning_rate, "more than 0")
        threads = self.threads_per_replica
        check_option(threads is None or threads >= 1, "threads_per_replica", threads, "at least 1")

    def identity(self) -> dict[str, Any]:
        """Return every option that the trained weights depend on, as JSON values; they do not depend on the engine."""
        return options_of(self, leave_out=_NOT_NUMERIC)

    def of_replicas(self) -> dict[str, Any]:
        """Return the options that a `ReplicaJob` has besides the recipe."""
        names = ("replicas", "rounds", "steps_per_round", "learning_rate")
        return {name: getattr(self, name) for name in names}
