"""The options that every verb which trains has: data, patches, loss, arithmetic. Both verbs show the same defaults."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_steps.runtime.options import check_option, option

MOST_DATA_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Options shared by the verbs that train; the defaults are those of the demo (docs/benchmarks.md)."""

    training_set: Path = option("folder of prepared training and validation cases with labels, as preprocess writes it")
    output: Path = option("model folder to write")
    training_log: Path = option("folder to write: TensorBoard events and curves.json", default=Path("training_log"))

    batch_size: int = option("patches per step, over all ranks together", default=10)
    patch_shape: tuple[int, int, int] = option(
        "voxels of a training patch along I J K", default=(32, 32, 32), metavar="I J K"
    )
    weight_decay: float = option("decoupled weight decay (AdamW); 0 is plain Adam", default=0.0)
    beta2: float = option("decay of Adam's mean of squared gradients", default=0.999)
    amsgrad: bool = option("Adam that divides by the largest such mean so far (AMSGrad)", default=False)
    schedule: Literal["one-cycle", "constant"] = option(
        "course of the learning rate: one-cycle rises and falls once, constant is --learning-rate at every step",
        default="one-cycle",
    )
    warm_up: float = option("share of the steps in which the learning rate rises (one-cycle)", default=0.1)
    dice_weight: float = option("weight of the Dice loss", default=1.0)
    dice: Literal["batch", "sample"] = option(
        "what a Dice is taken over: batch is all patches of a rank together; sample is each patch, of which the mean is taken",
        default="batch",
    )
    dice_smoothing: float = option("voxels added to both sides of the Dice's fraction", default=1.0)
    cross_entropy_weight: float = option("weight of the cross-entropy loss", default=1.0)
    lesion_share: float = option("share of patches placed on a lesion, each lesion with equal chance", default=0.6)
    bright_share: float = option(
        "share of the other patches placed on bright structures (vessels) of cases that were cropped to the lungs",
        default=0.3,
    )
    thick_share: float = option("share of the other patches placed on thick bright structures (hila)", default=0.4)
    augment: bool | None = option(
        "flip, rotate and change the intensity of patches (default: yes; no with --epochs)", default=None
    )
    seed: int = option("seed of weights, patches and augmentation", default=0)

    data_workers: int | None = option(
        "processes of each rank or replica that cut patches; 0 is a thread; else one for each compute thread, up to 4, where the "
        "network is on a GPU, and a thread elsewhere",
        default=None,
    )

    validation_cases: int = option(
        "validation cases looked at during training; 0 for all; all are at the end", default=0
    )
    max_false_positives: float = option(
        "most false positives per validation scan that the choice of postprocessing may allow", default=0.5
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "arithmetic of the network: auto is bfloat16 (mixed) where all machines compute in it, else float32",
        default="auto",
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto is a GPU where there is one", default="auto")

    @property
    def augments(self) -> bool:
        """Whether patches are augmented."""
        return self.augment is not False

    def data_processes(self, device: Any, *, num_threads: int) -> int:
        """Return the processes of a rank that cut patches, for a torch.device and the rank's threads."""
        if self.data_workers is not None:
            return self.data_workers
        return min(num_threads, MOST_DATA_WORKERS) if device.type == "cuda" else 0

    def __post_init__(self) -> None:
        workers = self.data_workers
        check_option(workers is None or workers >= 0, "data_workers", workers, "0 or more")
        check_option(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        for name in ("validation_cases", "seed"):
            check_option(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("weight_decay", "dice_weight", "cross_entropy_weight", "max_false_positives"):
            check_option(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more")
        for name in ("lesion_share", "bright_share", "thick_share"):
            check_option(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        together = self.bright_share + self.thick_share
        check_option(together <= 1 + 1e-9, "bright_share", f"{together:g} with --thick-share", "at most 1 together")
        check_option(0 <= self.beta2 < 1, "beta2", self.beta2, "0 or more, below 1")
        check_option(0 < self.dice_smoothing < math.inf, "dice_smoothing", self.dice_smoothing, "more than 0")
        check_option(0 < self.warm_up < 1, "warm_up", self.warm_up, "between 0 and 1")
        check_option(self.dice_weight + self.cross_entropy_weight > 0, "dice_weight", 0, "a loss with some weight")
        check_option(min(self.patch_shape) >= 1, "patch_shape", self.patch_shape, "voxels, each >= 1")


def options_of(recipe: Recipe, *, leave_out: Collection[str]) -> dict[str, Any]:
    """Return the options of a training as JSON values.

    The options of a variant (a strategy, a network) are left out where they have their default, so that checkpoints from before
    an option existed still fit.

    Args:
        leave_out: options that the weights do not depend on.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if "variants" in field.metadata:
            own = {part.name: (getattr(value, part.name), part.default) for part in dataclasses.fields(value)}
            values |= {name: used for name, (used, default) in own.items() if used != default}
        else:
            values[field.name] = value
    values["augment"] = recipe.augments
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in leave_out
    }
