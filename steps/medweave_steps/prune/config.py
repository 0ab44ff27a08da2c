"""The options of `prune`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_steps.runtime.options import check_option, option
from medweave_steps.training.recipe import Recipe, Schedule, options_of

Method = Literal["serene", "lobster", "generic"]

_NOT_NUMERIC = (
    "training_set", "output", "training_log", "trained_model", "checkpoint_folder", "resume_from", "data_workers", "allow_code",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneConfig(Recipe):
    """Options of `prune`; the defaults are those of the authors' example (LeNet-5 on MNIST), but for the batch."""

    trained_model: Path = option("model folder of train or bundle to prune")
    method: Method = option(
        "sensitivity that decides: serene removes whole channels, so that every runtime computes less; lobster (gradient of the "
        "loss) and generic (gradient of the outputs) set single weights to zero, which makes no dense runtime faster",
        default="serene",
    )
    tolerance: float = option(
        "largest rise of the validation loss by pruning, as a fraction of the loss of the trained model", default=0.05
    )
    removal_tolerance: float | None = option(
        "largest rise of the validation loss directly after a removal, before the training that follows it, as a fraction of the "
        "loss before it (default: --tolerance); a larger value removes more at a time, which the training may repair",
        default=None,
    )
    budget_epochs: int = option(
        "number of epochs; at least a quarter of them train the network after the last removal", default=100
    )
    epoch_steps: int = option("optimizer steps per epoch; the validation loss is computed after each epoch", default=20)
    plateau_epochs: int = option(
        "number of epochs without a lower validation loss, after which weights or channels are removed", default=20
    )
    learning_rate: float = option("learning rate", default=0.1)
    shrink: float = option(
        "shrink rate: after each step, a weight w is reduced by shrink * w * relu(1 - sensitivity)", default=1e-4
    )
    optimizer: Literal["adam", "adamw", "sgd"] = option(
        "optimizer: adam (with --weight-decay, AdamW), adamw, or sgd with Nesterov momentum", default="sgd"
    )
    momentum: float = option("Nesterov momentum of sgd; 0 is plain gradient descent", default=0.0)
    schedule: Schedule = option(
        "learning-rate schedule of the budget, as in train; it starts again after each removal of channels",
        default="constant",
    )
    allow_code: bool = option(
        "run the code of a network that is not part of medweave (scripts/ of the model folder), with your rights",
        default=False,
    )
    checkpoint_folder: Path | None = option("folder for checkpoint.pt, written after every epoch", default=None)
    resume_from: Path | None = option(
        "checkpoint, or folder with checkpoint.pt, to resume from (default: the newest complete checkpoint of "
        "MEDWEAVE_RESUME_FROM)",
        default=None,
    )

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)  # `super()` does not find its class in a dataclass with slots
        for name in ("epoch_steps", "plateau_epochs"):
            check_option(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        budget, least = self.budget_epochs, self.plateau_epochs + 1
        expected = f"at least {least}: weights are removed after --plateau-epochs without a lower validation loss"
        check_option(budget >= least, "budget_epochs", budget, expected)
        for name in ("tolerance", "removal_tolerance", "shrink"):
            value = getattr(self, name)
            check_option(value is None or 0 <= value < math.inf, name, value, "0 or more")
        check_option(0 < self.learning_rate < math.inf, "learning_rate", self.learning_rate, "more than 0")
        expected = "no value: prune validates on all cases"
        check_option(not self.validation_cases, "validation_cases", self.validation_cases, expected)

    @property
    def is_structured(self) -> bool:
        """Whether whole channels are removed."""
        return self.method == "serene"

    def identity(self) -> dict[str, Any]:
        """Return every option that the pruned weights depend on, as JSON values."""
        return options_of(self, leave_out=_NOT_NUMERIC)
