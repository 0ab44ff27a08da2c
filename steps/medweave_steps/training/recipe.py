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
MONITOR_INTERVAL = (
    "time between two hardware samples of a rank (power, utilization, clocks, memory, network, disks), in the training log, in "
    "seconds; 0 turns the monitor off"
)
MONITOR_INTERVAL_S, MIN_MONITOR_INTERVAL_S = 1.0, 0.1
Schedule = Literal["one-cycle", "constant", "polynomial", "cosine", "geometric", "geometric-by-epoch", "cyclic"]
_NAMED_IF_USED = ("optimizer", "momentum", "last_rate", "cycles", "gradient_clip", "augmentation")
"""Options younger than some checkpoints, whose identity has them only where they differ from their default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Options shared by the verbs that train; the defaults are those of the demo (docs/benchmarks.md)."""

    training_set: Path = option("training_set folder of preprocess, with labels or classes")
    output: Path = option("model folder to write")
    training_log: Path = option("folder to write: TensorBoard events and curves.json", default=Path("training_log"))

    batch_size: int = option("patches (classification: images) per optimizer step, summed over all ranks", default=10)
    patch_shape: tuple[int, int, int] = option(
        "patch size along I J K, in voxels; a classification takes whole images or volumes",
        default=(32, 32, 32),
        metavar="I J K",
    )
    optimizer: Literal["adam", "adamw", "sgd"] = option(
        "optimizer: adam (with --weight-decay, AdamW), adamw, or sgd with Nesterov momentum", default="adam"
    )
    weight_decay: float = option(
        "decoupled weight decay (AdamW); 0 is plain Adam; with sgd, an L2 penalty", default=0.0
    )
    momentum: float = option("Nesterov momentum of sgd; 0 is plain gradient descent", default=0.99)
    beta2: float = option("beta2 of Adam: decay rate of the second moment", default=0.999)
    amsgrad: bool = option("use the AMSGrad variant of Adam", default=False)
    schedule: Schedule = option(
        "learning-rate schedule: one-cycle (rises, then falls), constant, polynomial (falls with power 0.9), cosine (falls), "
        "geometric (falls by the same factor in each step), geometric-by-epoch (falls by the same factor after each epoch, or "
        "round of train-distributed; the last one has --last-rate), or cyclic (rises and falls --cycles times)",
        default="one-cycle",
    )
    warm_up: float = option("fraction of the steps in which the learning rate rises (one-cycle)", default=0.1)
    last_rate: float = option(
        "lowest learning rate of the geometric, geometric-by-epoch and cyclic schedules, as a fraction of --learning-rate",
        default=0.01,
    )
    cycles: int = option("number of cycles of the cyclic schedule in the whole training", default=4)
    gradient_clip: float = option(
        "largest norm of all gradients together; longer gradients are scaled down to it; 0 does not clip", default=0.0
    )
    dice_weight: float = option("weight of the Dice loss", default=1.0)
    dice: Literal["batch", "sample"] = option(
        "Dice reduction: batch is one Dice over all patches of a rank; sample is the mean of the Dice of each patch",
        default="batch",
    )
    dice_smoothing: float = option(
        "smoothing term of the Dice loss, added to numerator and denominator, in voxels", default=1.0
    )
    cross_entropy_weight: float = option("weight of the cross-entropy loss", default=1.0)
    lesion_share: float = option(
        "fraction of patches sampled on lesions, with equal probability per lesion; of several labels, each is equally likely",
        default=0.6,
    )
    bright_share: float = option(
        "fraction of the other patches sampled on bright structures (vessels) in cases cropped to the lungs",
        default=0.3,
    )
    thick_share: float = option(
        "fraction of the other patches sampled on thick bright structures (hila) in cases cropped to the lungs; all other cases: "
        "anywhere",
        default=0.4,
    )
    augment: bool | None = option(
        "augment patches: flips, rotations, intensity changes (default: yes; no with --epochs of train)", default=None
    )
    augmentation: Literal["basic", "full"] = option(
        "kind of augmentation: basic (flips, rotations by 90°, small intensity changes), or full, that of nnU-Net (rotation by any "
        "angle, scaling, gamma, noise, mirroring), for z-scored intensities",
        default="basic",
    )
    seed: int = option("random seed of weight initialization, patches and augmentation", default=0)

    data_workers: int | None = option(
        "data-loading processes of each rank or replica; 0 uses a thread (default: on a GPU one per compute thread, up to 4; "
        "on the CPU a thread)",
        default=None,
    )

    validation_cases: int = option(
        "number of validation cases during training; 0 means all; the final validation uses all", default=0
    )
    max_false_positives: float = option(
        "maximum number of false positives per validation scan, of each label or region, when the postprocessing thresholds are "
        "selected",
        default=0.5,
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "precision of training: auto uses bfloat16 (mixed precision) if all machines support it, else float32; on a CPU also "
        "float32 for networks with grouped convolutions, such as mobilenet",
        default="auto",
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto uses a GPU if available", default="auto")

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
        for name in ("weight_decay", "dice_weight", "cross_entropy_weight", "max_false_positives", "gradient_clip"):
            check_option(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more")
        for name in ("lesion_share", "bright_share", "thick_share"):
            check_option(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        together = self.bright_share + self.thick_share
        check_option(together <= 1 + 1e-9, "bright_share", f"{together:g} with --thick-share", "a sum of at most 1")
        check_option(0 <= self.beta2 < 1, "beta2", self.beta2, "0 or more, and less than 1")
        check_option(0 < self.dice_smoothing < math.inf, "dice_smoothing", self.dice_smoothing, "more than 0")
        check_option(0 < self.warm_up < 1, "warm_up", self.warm_up, "between 0 and 1")
        check_option(0 <= self.momentum < 1, "momentum", self.momentum, "0 or more, and less than 1")
        check_option(0 < self.last_rate <= 1, "last_rate", self.last_rate, "more than 0, at most 1")
        check_option(self.cycles >= 1, "cycles", self.cycles, "at least 1")
        self._check_optimizer()
        check_option(
            self.dice_weight + self.cross_entropy_weight > 0,
            "dice_weight",
            0,
            "a positive weight of at least one loss term",
        )
        check_option(min(self.patch_shape) >= 1, "patch_shape", self.patch_shape, "numbers of voxels, each >= 1")

    def _check_optimizer(self) -> None:
        """Refuse options that the selected optimizer or schedule would ignore."""
        decays = self.optimizer != "adamw" or self.weight_decay > 0
        check_option(decays, "weight_decay", self.weight_decay, "more than 0 with --optimizer adamw, such as 0.01")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, has_effect, expected in (
            ("momentum", self.optimizer == "sgd", "no value: the option applies only to --optimizer sgd"),
            ("beta2", self.optimizer != "sgd", "no value: the option applies only to --optimizer adam and adamw"),
            ("amsgrad", self.optimizer != "sgd", "no value: the option applies only to --optimizer adam and adamw"),
            ("cycles", self.schedule == "cyclic", "no value: the option applies only to --schedule cyclic"),
            (
                "last_rate",
                self.schedule in ("geometric", "geometric-by-epoch", "cyclic"),
                "no value: the option applies only to --schedule geometric, geometric-by-epoch and cyclic",
            ),
        ):
            value = getattr(self, name)
            check_option(has_effect or value == defaults[name], name, value, expected)


def check_monitor_interval(seconds: float) -> None:
    """Refuse an interval that would load the machine; 0 is no monitor."""
    fits = seconds == 0 or MIN_MONITOR_INTERVAL_S <= seconds < math.inf
    check_option(fits, "monitor_interval", seconds, f"0 (no monitor), or at least {MIN_MONITOR_INTERVAL_S:g}")


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
        elif field.name not in _NAMED_IF_USED or value != field.default:
            values[field.name] = value
    values["augment"] = recipe.augments
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in leave_out
    }
