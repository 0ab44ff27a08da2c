"""The options of `train`; the defaults are the recipe of the lung nodule demo (docs/benchmarks.md has its figures)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_steps.contracts.errors import UsageError
from medweave_steps.runtime.options import option
from medweave_steps.train.strategies import STRATEGIES

_NOT_NUMERIC = (
    "training_set",
    "output",
    "training_log",
    "checkpoint_folder",
    "checkpoint_interval",
    "resume_from",
    "name",
)
"""Options that do not change the trained weights: a run may be resumed under other values of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Options of `train`."""

    training_set: Path = option("folder of prepared training and validation cases with labels, as preprocess writes it")
    output: Path = option("model folder to write")
    training_log: Path = option("folder to write: TensorBoard events and curves.json", default=Path("training_log"))
    name: str = option("the model's name in its card", default="lung-nodule")

    steps: int = option("optimiser steps", default=2600)
    batch_size: int = option("patches per step, over all ranks together", default=10)
    patch_shape: tuple[int, int, int] = option(
        "voxels of a training patch along I J K", default=(32, 32, 32), metavar="I J K"
    )
    channels: tuple[int, ...] = option(
        "channels per level of the U-Net, finest first", default=(8, 16, 32, 64, 128), metavar="N"
    )
    strides: tuple[int, ...] = option(
        "down-sampling on entering each level but the last (1 keeps full resolution)", default=(1, 2, 2, 2), metavar="N"
    )
    residual_units: int = option("residual convolutions per level; 0 for plain convolutions", default=0)
    learning_rate: float = option("peak of the one-cycle schedule (Adam)", default=5e-3)
    weight_decay: float = option("decoupled weight decay (AdamW); 0 is plain Adam", default=0.0)
    warm_up: float = option("share of the steps in which the learning rate rises", default=0.1)
    dice_weight: float = option("weight of the Dice loss, taken over the whole batch", default=1.0)
    cross_entropy_weight: float = option("weight of the cross-entropy loss", default=1.0)
    lesion_share: float = option("share of patches placed on a lesion, each lesion with equal chance", default=0.6)
    bright_share: float = option("share of the other patches placed on bright lung structures (vessels)", default=0.3)
    thick_share: float = option("share of the other patches placed on thick bright structures (hila)", default=0.4)
    augment: bool = option("flip, rotate and change the intensity of patches", default=True)
    seed: int = option("seed of weights, patches and augmentation", default=0)

    epoch_steps: int = option("steps per epoch, the unit of progress", default=100)
    validation_interval: int = option("epochs between two validations", default=6)
    validation_cases: int = option(
        "validation cases looked at during training; 0 for all; all are at the end", default=0
    )
    patience: int = option("validations without a better score after which training stops; 0 never stops", default=0)
    window_shape: tuple[int, int, int] = option(
        "voxels of a sliding window along I J K, kept in the model card", default=(88, 104, 88), metavar="I J K"
    )
    overlap: float = option("share of a window that neighbouring windows have in common", default=0.25)
    max_false_positives: float = option(
        "most false positives per validation scan that the choice of threshold and size filter may allow", default=0.5
    )

    precision: Literal["auto", "float32", "bfloat16"] = option(
        "arithmetic of the network: auto is bfloat16 (mixed) where the machine computes in it, else float32",
        default="auto",
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto is a GPU where there is one", default="auto")
    strategy: Literal["single"] = option("how training is spread over processes", default="single")
    checkpoint_folder: Path | None = option(
        "folder for checkpoint.pt: every --checkpoint-interval steps, on INT, TERM and USR1", default=None
    )
    checkpoint_interval: int = option("steps between two checkpoints", default=500)
    resume_from: Path | None = option("checkpoint, or folder with checkpoint.pt, to continue exactly", default=None)

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "epoch_steps", "validation_interval", "checkpoint_interval"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("residual_units", "validation_cases", "patience", "seed"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("weight_decay", "dice_weight", "cross_entropy_weight", "max_false_positives"):
            _require(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more")
        for name in ("lesion_share", "bright_share", "thick_share"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        together = self.bright_share + self.thick_share
        _require(together <= 1 + 1e-9, "bright_share", f"{together:g} with --thick-share", "at most 1 together")
        _require(0 < self.learning_rate < math.inf, "learning_rate", self.learning_rate, "more than 0")
        _require(0 < self.warm_up < 1, "warm_up", self.warm_up, "between 0 and 1")
        _require(0 <= self.overlap < 1, "overlap", self.overlap, "0 or more, below 1")
        _require(self.dice_weight + self.cross_entropy_weight > 0, "dice_weight", 0, "a loss with some weight")
        _require(self.strategy in STRATEGIES, "strategy", self.strategy, f"one of {', '.join(STRATEGIES)}")
        self._check_network()

    def _check_network(self) -> None:
        _require(
            len(self.channels) >= 2 and min(self.channels) >= 1, "channels", self.channels, "two or more, each >= 1"
        )
        levels = len(self.channels) - 1
        fits = len(self.strides) == levels and min(self.strides) >= 1
        _require(fits, "strides", self.strides, f"{levels} numbers, one less than --channels, each >= 1")
        for name in ("patch_shape", "window_shape"):
            shape, multiple = getattr(self, name), self.patch_multiple
            fits = min(shape) >= 1 and not any(side % multiple for side in shape)
            _require(fits, name, shape, f"multiples of {multiple}, the product of --strides")

    @property
    def patch_multiple(self) -> int:
        """Every side of a patch must be a multiple of this."""
        return math.prod(self.strides)

    def identity(self) -> dict[str, Any]:
        """Every option that the trained weights depend on, as JSON values; equal identities train equal weights."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name not in _NOT_NUMERIC
        }


def _require(holds: bool, name: str, seen: Any, expected: str) -> None:
    if not holds:
        shown = " ".join(map(str, seen)) if isinstance(seen, tuple) else str(seen)
        raise UsageError(f"--{name.replace('_', '-')} cannot be used.", seen=shown, expected=expected)
