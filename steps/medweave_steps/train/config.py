"""The options of `train`; the defaults are the recipe of the demo (docs/benchmarks.md has its figures)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.errors import UserInputError
from medweave_steps.networks import (
    DEFAULTS,
    LAYER_STACK_NAME,
    NetworkOptions,
    check_kind,
    is_user_class,
    network_names,
    network_type,
)
from medweave_steps.networks import OPTIONS as NETWORK_OPTIONS
from medweave_steps.runtime.options import check_option, option, variant_options
from medweave_steps.tasks import OPTIONS as TASK_OPTIONS
from medweave_steps.tasks import task_named, task_names
from medweave_steps.tasks.training import TaskOptions
from medweave_steps.training.data.batch import steps_of_epoch
from medweave_steps.training.distributed.group import Group
from medweave_steps.training.recipe import (
    MONITOR_INTERVAL,
    MONITOR_INTERVAL_S,
    Recipe,
    check_monitor_interval,
    options_of,
)
from medweave_steps.training.strategies import OPTIONS as STRATEGY_OPTIONS
from medweave_steps.training.strategies import (
    Strategy,
    StrategyOptions,
    TrainingFacts,
    strategy_class,
    strategy_names,
)

_NOT_NUMERIC = (
    "training_set", "output", "training_log", "checkpoint_folder", "checkpoint_interval", "resume_from", "name",
    "threads_per_rank", "recompute", "data_workers", "cache_mib", "preset", "memory_gib", "network_file",
    "network_code", "allow_code", "initial_weights", "worker_timeout", "transport", "replay_arrivals", "monitor_interval",
)  # fmt: skip
"""Options that do not change the trained weights: a run may be resumed under other values of these. Digests of the files of the
network are part of `NetworkPlan.identity`."""

_NAMED_IF_USED = (
    "folds",
    "task",
    "epochs",
    "accumulate",
    "network",
    "norm",
    "beta2",
    "amsgrad",
    "schedule",
    "dice",
    "dice_smoothing",
    "scale_by_ranks",
    "window_hu",
    "scaled_range",
    "freeze",
)

_DEFAULT_TASK_OPTIONS = task_named("segmentation").Options()

RECIPE_OPTIONS = ("steps", "epochs", "batch_size", "patch_shape", "learning_rate", "network", "channels")
"""Options that fit a training to its data; their defaults are the recipe of the demo."""


DISTMIS: Mapping[str, Any] = {
    "network": "distmis-as-described", "epochs": 250, "batch_size": 2, "scale_by_ranks": True, "learning_rate": 1e-4,
    "patch_shape": (240, 240, 152), "window_shape": (240, 240, 152), "schedule": "constant", "dice": "sample",
    "dice_smoothing": 0.1, "cross_entropy_weight": 0.0,
}  # fmt: skip
"""Recipe of DistMIS (Berral et al. 2022): whole volumes, Dice loss, Adam; batch size and learning rate of one rank."""

RESATTNET: Mapping[str, Any] = {
    "task": "classification", "sampling": "natural", "network": "resattnet18", "epochs": 50, "batch_size": 6,
    "optimizer": "sgd", "momentum": 0.9, "learning_rate": 1e-4, "schedule": "geometric-by-epoch", "last_rate": 0.01,
}  # fmt: skip
"""Recipe of 3D-ResAttNet (Akintoye et al. 2021): SGD, learning rate from 1e-4 down to 1e-6, cross-entropy. The paper prints neither
the momentum nor the form of the decay: momentum 0.9 and a geometric decay are medweave's choice."""

PRESETS: Mapping[str, Mapping[str, Any]] = {"distmis": DISTMIS, "resattnet": RESATTNET}
_OF_CHOICE = {"momentum": "optimizer", "last_rate": "schedule", "epochs": "steps"}
"""Options of a preset that belong to its value of another option, and are left out with another value of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(Recipe):
    """Options of `train`."""

    @staticmethod
    def defaults_for(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that differ from those of the fields: of a preset, a kind of task, and a file of layers."""
        preset = PRESETS.get(str(values.get("preset")), {})
        preset = {
            name: value
            for name, value in preset.items()
            if (choice := _OF_CHOICE.get(name, name)) not in values or values[choice] == preset.get(choice)
        }
        kind = task_named(str(values.get("task", preset.get("task", "segmentation")))).output_kind
        network = LAYER_STACK_NAME if values.get("network_file") else DEFAULTS[kind]
        of_kind = {} if network == DEFAULTS["voxels"] else {"network": network}
        return {**of_kind, **preset}

    name: str | None = option(
        "model name in the model card (default: anatomic region and name of each label, or the names of the first classes)",
        default=None,
    )

    task: str = option(
        "what the model learns: segmentation of the labels of the training set, classification of its images or volumes, or the "
        "task of another installed package",
        default="segmentation",
        choices=task_names,
    )
    task_options: TaskOptions = variant_options(TASK_OPTIONS, default=_DEFAULT_TASK_OPTIONS)
    steps: int = option("number of optimizer steps", default=2000)
    epochs: int | None = option(
        "number of passes over the training cases, instead of --steps and --epoch-steps; patches are then whole cases, each used "
        "exactly once per epoch, and --patch-shape must fit the largest case",
        default=None,
    )
    network: str = option(
        "for segmentation: unet, the MONAI U-Net of --channels, --strides, --residual-units and --norm; the 3-D U-Net of DistMIS, "
        "as described in the paper, and as implied by its 406,793 parameters (its layers depend on the depth of --patch-shape); "
        "resenc-unet, nnU-Net's residual-encoder U-Net with instance norm and deep supervision. For classification: mobilenet "
        "(v1, the default there), vgg16 (images only), resnet18, resnet50, densenet121, and 3D-ResAttNet as "
        "resattnet18 and resattnet34 (volumes only), ecg-resnet (signals only), and mlp, a multi-layer perceptron for rows of "
        "tables. For both: layer-stack, declared in "
        "--network-file, and module:Class, a class of your own (see --allow-code)",
        default="unet",
        choices=network_names,
    )
    network_file: Path | None = option(
        "YAML file of a layer stack (conv, norm, activation, pool, dropout, dense), with --network layer-stack, which it selects",
        default=None,
    )
    network_code: Path | None = option(
        "Python file with the class of --network NAME:Class; the model folder gets a copy, scripts/NAME.py. Without it, the module "
        "must be installed",
        default=None,
    )
    allow_code: bool = option(
        "run the code of --network module:Class, which is not part of medweave, with your rights", default=False
    )
    initial_weights: Path | None = option(
        "weights to begin with, where name and shape match: a model folder, a MONAI Bundle, or a state dict (.safetensors, .pt)",
        default=None,
    )
    freeze: tuple[str, ...] = option(
        "with --initial-weights, parameters that are not trained, as patterns of their names such as 'features.*'; the means and "
        "variances of batch norm still follow the training cases",
        default=(), metavar="PATTERN",
    )  # fmt: skip
    channels: tuple[int, ...] = option(
        "channels per level of the U-Net, from the highest resolution down", default=(8, 16, 32, 64, 128), metavar="N"
    )
    strides: tuple[int, ...] = option(
        "stride between two levels of the U-Net (1 keeps the resolution)", default=(1, 2, 2, 2), metavar="N"
    )
    residual_units: int = option("residual units per level; 0 for plain convolutions", default=0)
    norm: Literal["batch", "group", "instance"] = option(
        "normalization layers: batch (over the patches of a rank), group (up to 8 groups of channels) or instance (per channel)",
        default="batch",
    )
    network_options: NetworkOptions = variant_options(NETWORK_OPTIONS, default=NetworkOptions())
    learning_rate: float = option("learning rate of Adam (peak of the schedule)", default=5e-3)
    scale_by_ranks: bool = option(
        "--batch-size and --learning-rate apply to one rank: multiply both by --ranks; with hybrid by the replicas, with "
        "parameter-server by the workers",
        default=False,
    )

    epoch_steps: int = option("optimizer steps per epoch", default=100)
    validation_interval: int = option("validation interval, in epochs", default=10)
    patience: int = option(
        "early stopping: number of validations without a better validation score; with parameter-server, a validation counts only "
        "if the training loss is the lowest so far; 0 disables it",
        default=0,
    )
    window_shape: tuple[int, int, int] = option(
        "sliding-window size along I J K, in voxels; stored in the model card", default=(88, 104, 88), metavar="I J K"
    )
    overlap: float = option("overlap of neighboring windows, as a fraction of the window size", default=0.25)
    folds: int | None = option(
        "cross-validation: divide the patients of train and validation into this many folds (by --seed) and train one model for "
        "each, validated on its fold; --output then has the folders fold-0, fold-1, ... and cross_validation.json, the table of "
        "their scores",
        default=None,
    )
    window_hu: tuple[float, float] | None = option(
        "intensity window of CT that the network sees, HU, within that of preprocess (default: that of preprocess)",
        default=None, metavar="LOW HIGH",
    )  # fmt: skip
    scaled_range: tuple[float, float] = option(
        "the network's input at both ends of the intensity window of CT", default=(0.0, 1.0), metavar="LOW HIGH"
    )
    preset: Literal["demo", "distmis", "resattnet", "auto"] = option(
        "defaults of the other options: demo is the recipe of the demo's synthetic scans, distmis that of the DistMIS paper for "
        "whole brains, resattnet that of the 3D-ResAttNet paper for the classification of whole brains; auto "
        "chooses them by nnU-Net's rules for the training set and the memory, and prints what it chose; options that you set keep "
        "your value",
        default="demo",
    )
    memory_gib: float | None = option(
        "memory of a training step with --preset auto, GiB (default: the free memory of the device, at most 24 on a GPU and "
        "8 on the CPU)",
        default=None,
    )
    strategy: str = option(
        "distribution strategy: single uses one process; ddp averages gradients over --ranks at every step; local-sgd averages "
        "weights at the end of every epoch and every --sync-interval steps; hybrid cuts the network into --stages, each on a rank "
        "of its own, and averages the gradients of their copies; parameter-server has rank 0 collect gradients or weights of the "
        "others, synchronously or, with --coordination async, as they arrive",
        default="single",
        choices=strategy_names,
    )
    ranks: int = option(
        "number of ranks (processes) of a multi-process strategy, over all nodes; a multiple of the number of nodes",
        default=1,
    )
    strategy_options: StrategyOptions = variant_options(STRATEGY_OPTIONS, default=StrategyOptions())
    accumulate: int = option(
        "gradient accumulation: number of parts of a rank's patches per step, to save memory; gradients synchronize once per step",
        default=1,
    )
    recompute: bool = option(
        "activation checkpointing: recompute activations in the backward pass; needs less memory and more time",
        default=False,
    )
    cache_mib: int | None = option(
        "case cache of each rank, MiB, with --epochs (default: no cache; cases are read from their files in each epoch)",
        default=None,
    )
    threads_per_rank: int | None = option(
        "compute threads of each rank (default: --num-threads divided among the ranks of a node)", default=None
    )
    monitor_interval: float = option(MONITOR_INTERVAL, default=MONITOR_INTERVAL_S)
    checkpoint_folder: Path | None = option(
        "folder for checkpoint.pt, written every --checkpoint-interval steps and on SIGINT, SIGTERM and SIGUSR1",
        default=None,
    )
    checkpoint_interval: int = option("checkpoint interval, in optimizer steps", default=500)
    resume_from: Path | None = option(
        "checkpoint, or folder with checkpoint.pt, to resume from, exactly or with another --strategy or number of --ranks "
        "(default: the newest complete checkpoint of MEDWEAVE_RESUME_FROM)",
        default=None,
    )

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)  # `super()` does not find its class in a dataclass with slots
        check_monitor_interval(self.monitor_interval)
        for name in ("steps", "epoch_steps", "validation_interval", "checkpoint_interval"):
            check_option(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("residual_units", "patience"):
            check_option(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        check_option(self.epochs is None or self.epochs >= 1, "epochs", self.epochs, "at least 1")
        check_option(0 < self.learning_rate < math.inf, "learning_rate", self.learning_rate, "more than 0")
        check_option(0 <= self.overlap < 1, "overlap", self.overlap, "0 or more, and less than 1")
        uses_ranks = strategy_class(self.strategy).uses_ranks
        most = (math.inf if self.scale_by_ranks else self.batch_size) if uses_ranks else 1
        replicas = self.strategy_options.replicas(self.ranks)
        limit = most * max(1, self.ranks // max(1, replicas)) + self.ranks % max(1, replicas)
        expected = (
            "1, or choose --strategy ddp"
            if most == 1
            else f"1 to {limit}: every rank needs at least one patch of --batch-size"
        )
        check_option(1 <= self.ranks <= limit, "ranks", self.ranks, expected)
        threads = self.threads_per_rank
        check_option(threads is None or threads >= 1, "threads_per_rank", threads, "at least 1")
        self._check_folds()
        self._check_variants()
        self._check_own_network()
        self.strategy_options.check(self.facts())
        self._check_cache()
        parts, least = self.accumulate, self.batch_size // (1 if self.scale_by_ranks else replicas)
        check_option(1 <= parts <= least, "accumulate", parts, f"1 to {least}, the number of patches per rank and step")
        if self.preset != "auto":  # which chooses the network later
            self._check_network()
        self._check_intensities()

    def _check_intensities(self) -> None:
        for name in ("window_hu", "scaled_range"):
            low, high = getattr(self, name) or (0.0, 1.0)
            fits = -math.inf < low < high < math.inf
            check_option(fits, name, getattr(self, name), "two numbers, in ascending order")
        memory = self.memory_gib
        fits = memory is None or (0 < memory < math.inf and self.preset == "auto")
        whole = self.epochs is not None and self.preset == "auto"
        check_option(
            not whole, "preset", self.preset, "demo, distmis or resattnet: with --epochs, a patch is a whole case"
        )
        check_option(fits, "memory_gib", memory, "more than 0, with --preset auto")

    def _check_optimizer(self) -> None:
        if self.preset != "auto":  # which chooses optimizer and schedule later
            Recipe._check_optimizer(self)

    def _check_folds(self) -> None:
        folds, uses_ranks = self.folds, strategy_class(self.strategy).uses_ranks
        expected = "at least 2, with --strategy single: the folds are trained one after the other in one process"
        check_option(folds is None or (folds >= 2 and not uses_ranks), "folds", folds, expected)

    def _check_variants(self) -> None:
        assert isinstance(self.strategy_options, strategy_class(self.strategy).Options), "made by build_config"
        assert isinstance(self.network_options, network_type(self.network).Options), "made by build_config"
        assert isinstance(self.task_options, task_named(self.task).Options), "made by build_config"

    def _check_own_network(self) -> None:
        task = task_named(self.task)
        fits = task.output_kind == "voxels" or self.preset != "auto"
        check_option(
            fits, "preset", self.preset, f"demo: auto plans patches, and the task {self.task} takes whole images"
        )
        check_kind(self.network, task.output_kind, task=self.task)
        fits = self.network_file is None or self.network == LAYER_STACK_NAME
        check_option(
            fits, "network_file", self.network_file, f"no value: it applies only to --network {LAYER_STACK_NAME}"
        )
        fits = self.network_code is None or is_user_class(self.network)
        check_option(fits, "network_code", self.network_code, "no value: it applies only to --network module:Class")
        fits = not self.freeze or self.initial_weights is not None
        check_option(fits, "freeze", self.freeze, "no value: it applies only with --initial-weights")

    def _check_cache(self) -> None:
        mib, decided = self.cache_mib, self.strategy_options.cache_mib is not None
        fits = mib is None or (mib >= 1 and self.epochs is not None and not decided)
        check_option(fits, "cache_mib", mib, "at least 1, with --epochs and without --chunk-mib, which caches a chunk")

    def _check_network(self) -> None:
        network_type(self.network).check(self)
        check_option(
            len(self.channels) >= 2 and min(self.channels) >= 1, "channels", self.channels, "two or more, each >= 1"
        )
        levels = len(self.channels) - 1
        fits = len(self.strides) == levels and min(self.strides) >= 1
        check_option(fits, "strides", self.strides, f"{levels} numbers, one less than --channels, each >= 1")
        for name in ("patch_shape", "window_shape"):
            shape, multiple = getattr(self, name), self.patch_multiple
            fits = min(shape) >= 1 and not any(side % multiple for side in shape)
            check_option(fits, name, shape, f"multiples of {multiple}, the product of --strides")

    @property
    def has_demo_recipe(self) -> bool:
        """Whether the preset is that of the demo and every option of the recipe has its default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        defaults |= self.defaults_for({"task": self.task})
        return self.preset == "demo" and all(getattr(self, name) == defaults[name] for name in RECIPE_OPTIONS)

    @property
    def augments(self) -> bool:
        """Whether patches are augmented; by default whole volumes are not."""
        return self.epochs is None if self.augment is None else self.augment

    @property
    def patch_multiple(self) -> int:
        """The number that every side of a patch must be a multiple of."""
        return network_type(self.network).patch_multiple(self)

    def identity(self) -> dict[str, Any]:
        """Return every option that the trained weights depend on, as JSON values; equal identities train equal weights."""
        # Options at their default are left out, so that checkpoints from before these options still fit.
        unused = tuple(
            field.name
            for field in dataclasses.fields(self)
            if field.name in _NAMED_IF_USED and getattr(self, field.name) == field.default
        )
        return options_of(self, leave_out=_NOT_NUMERIC + unused)

    def of_sampler(self) -> dict[str, Any]:
        """Return the arguments of `open_sampler` besides the recipe."""
        cache_mib = self.strategy_options.cache_mib or self.cache_mib
        return {"whole_volumes": self.epochs is not None, "cache_mib": cache_mib}

    def facts(
        self, *, num_cases: int = 0, num_channels: int = 0, num_validation_cases: int = 0
    ) -> TrainingFacts:  # fmt: skip
        """Return the facts of the training that a strategy needs."""
        return TrainingFacts(
            steps=self.steps,
            epoch_steps=self.epoch_steps,
            epochs=self.epochs,
            ranks=self.ranks,
            batch_size=self.batch_size,
            patch_shape=self.patch_shape,
            accumulate=self.accumulate,
            recomputes=self.recompute,
            clips_gradients=self.gradient_clip > 0,
            num_cases=num_cases,
            num_channels=num_channels,
            num_validation_cases=num_validation_cases,
        )

    def open_strategy(self, *, group: Group, device: Any, **numbers: int) -> Strategy:
        """Return the strategy of the training on this rank.

        Args:
            numbers: arguments of `facts`.
        """
        facts = self.facts(**numbers)
        return strategy_class(self.strategy)(options=self.strategy_options, training=facts, group=group, device=device)

    def for_cases(self, num_cases: int, *, num_channels: int) -> TrainConfig:
        """Return the same training with the steps that its epochs have.

        Args:
            num_cases: training cases.
            num_channels: of each.
        Raises:
            UserInputError: a rank would have no case in any step, or the strategy's options do not fit the cases.
        """
        if self.epochs is None:
            self.strategy_options.check_cases(self.facts(num_cases=num_cases, num_channels=num_channels))
            return self
        replicas = self.strategy_options.replicas(self.ranks)
        if replicas > num_cases:
            kind = "ranks" if replicas == self.ranks else "replicas"
            raise UserInputError(
                f"there are more {kind} than training cases.",
                seen=f"{replicas} {kind}, {num_cases} training cases",
                expected=f"at most {num_cases} {kind}: with --epochs, each one trains on whole cases",
                do="reduce --ranks, or preprocess more cases",
            )
        self.strategy_options.check_cases(self.facts(num_cases=num_cases, num_channels=num_channels))
        in_epoch = steps_of_epoch(num_cases, self.batch_size)
        return dataclasses.replace(self, steps=self.epochs * in_epoch, epoch_steps=in_epoch)

    def for_all_ranks(self) -> TrainConfig:
        """Return the same training with the batch size and the learning rate of all replicas together.

        A replica is a rank; with `--strategy hybrid` the ranks of its stages; with `parameter-server` a worker.
        """
        if not self.scale_by_ranks:
            return self
        replicas = self.strategy_options.replicas(self.ranks)
        batch_size, learning_rate = self.batch_size * replicas, self.learning_rate * replicas
        return dataclasses.replace(self, batch_size=batch_size, learning_rate=learning_rate, scale_by_ranks=False)
