"""`--preset auto`: the options of a training chosen from its fingerprint and the memory, with the reason of each choice."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.codec import to_json
from medweave_core.contracts.volume import triple_of
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.io.cohort.target_spacing import target_spacing_mm
from medweave_steps.networks import axes_text, network_type
from medweave_steps.runtime.options import check_option
from medweave_steps.runtime.verb import StepContext
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.fingerprint import Fingerprint, read_fingerprint
from medweave_steps.train.planner import GIB, MEMORY_MODELS, DoesNotFitError, MemoryModel, Plan, PlanInput, make_plan

NETWORK = "resenc-unet"
MOST_GIB = {"cuda": 24.0, "cpu": 8.0}
"""Largest memory of a step that is used unless --memory-gib is set: nnU-Net's targets "L", its default for the residual encoder,
and "M"; more memory makes steps longer."""
USABLE_SHARE = 0.85
"""Part of the free memory of a device that is used, because the estimate may be too low."""
STEPS, EPOCH_STEPS, NUM_VALIDATIONS = 250_000, 250, 20
FOREGROUND_SHARE = 0.33
SAME_SPACING = 0.05
"""Relative difference below which the spacing of the cases is nnU-Net's."""

OF_COMMAND_LINE = frozenset({"task", "folds", "strategy", "ranks"})
"""Options that a checkpoint does not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The value of some options and the reason.

    Attributes:
        values: by option name.
        text: of the values, for people.
    """

    name: str
    values: Mapping[str, Any]
    text: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory for a training step.

    Attributes:
        source: where the number comes from, for messages.
    """

    model: MemoryModel
    num_bytes: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A configuration in which every option has its value.

    Attributes:
        notice: the choices and their reasons.
        facts: the same for the model card, as JSON values.
    """

    config: TrainConfig
    notice: str
    facts: Mapping[str, Any]


def planned(
    config: TrainConfig,
    context: StepContext,
    prepared: PreparedFolder,
    training: Sequence[CaseFolder],
    *,
    task: TrainingTask,
    num_nodes: int = 1,
) -> Preset:
    """Return the training with the options of --preset auto; a training that is resumed keeps those that it began with."""
    from medweave_steps.training.loop.checkpoint import read_checkpoint

    has_patches = task.input_shape(prepared) is None
    check_option(
        has_patches, "preset", config.preset, f"demo: auto plans patches, and the task {config.task} takes whole images"
    )
    if config.resume_from is not None:
        preset = apply_checkpoint(config, read_checkpoint(config.resume_from), options_set=context.options_set)
    else:
        memory = step_memory(config, ranks_on_node=-(-config.ranks // num_nodes))
        preset = apply_auto(
            config, prepared, training, options_set=context.options_set, memory=memory, out_channels=task.num_channels
        )
    context.notice(preset.notice)
    return preset


def apply_auto(
    config: TrainConfig, prepared: PreparedFolder, training: Sequence[CaseFolder], *, options_set: frozenset[str],
    memory: Memory, out_channels: int = 1,
) -> Preset:  # fmt: skip
    """Return the configuration with the options that are not set chosen for the training set.

    Args:
        training: training cases with labels; each is read once.
        options_set: options of the user, which keep their value.
        out_channels: of the network.
    Raises:
        UserInputError: no patch fits the memory; the message says what would.
        UsageError: options of the user do not fit the chosen ones.
    """
    fingerprint = read_fingerprint(prepared.cohort, training)
    plan_input = PlanInput(
        spacing_mm=fingerprint.spacing_mm,
        median_shape=fingerprint.median_shape,
        num_voxels=fingerprint.num_voxels,
        in_channels=len(fingerprint.channels),
        out_channels=out_channels,
        channels=config.channels if "channels" in options_set else None,
        patch_shape=config.patch_shape if "patch_shape" in options_set else None,
        batch_size=config.batch_size if "batch_size" in options_set else None,
    )
    try:
        plan = make_plan(plan_input, memory.model, memory.num_bytes)
    except DoesNotFitError as error:
        raise _does_not_fit(error, memory) from error
    stages, patch = len(plan.channels), plan.topology.patch_shape
    if "channels" in options_set and not _has_own_network(config, options_set):
        expected = f"{stages} numbers: a patch of {_by(patch)} voxels has {stages} stages"
        check_option(stages == len(config.channels), "channels", config.channels, expected)
    choices = [
        *_patch_choices(config, plan, fingerprint, memory, options_set),
        *_network_choices(config, plan, options_set),
        *_intensity_choices(config, fingerprint),
        *_optimization_choices(config, options_set),
    ]
    return _preset(config, choices, fingerprint, plan, options_set)


def apply_checkpoint(config: TrainConfig, content: Mapping[str, Any], *, options_set: frozenset[str]) -> Preset:
    """Return the configuration with the options that are not set as a checkpoint has them, to resume it.

    The free memory may be another one than when the training began; the choices must not change with it. Task, folds, strategy and
    ranks are those of the command line: the preset does not choose them, and their own options are only there.

    Args:
        content: the checkpoint.
    """
    before = json.loads(content["identity"])
    own = _names(config) - options_set - OF_COMMAND_LINE
    values = {name: _value(before[name]) for name in before.keys() & own}
    network = network_type(str(values.get("network", config.network)))
    names = {field.name for field in dataclasses.fields(network.Options)} & before.keys()
    values["network_options"] = network.Options(**{name: _value(before[name]) for name in names})
    resumed = dataclasses.replace(config, preset="demo", memory_gib=None, **values)
    return Preset(
        config=resumed, notice="preset auto: all options are those of the checkpoint.", facts={"name": "auto"}
    )


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _preset(
    config: TrainConfig, choices: Sequence[Choice], fingerprint: Fingerprint, plan: Plan, options_set: frozenset[str]
) -> Preset:
    values = {name: value for choice in choices for name, value in choice.values.items() if name not in options_set}
    options = {name: values.pop(name) for name in tuple(values) if name not in _names(config)}
    network = network_type(values.get("network", config.network))
    fixed = {name: getattr(config.network_options, name) for name in options_set & _names(config.network_options)}
    if options:
        values["network_options"] = network.Options(**options | fixed)
    # Every option has its value from here on.
    chosen = dataclasses.replace(config, preset="demo", memory_gib=None, **values)
    listed = [choice for choice in choices if not choice.values or choice.values.keys() - options_set]
    width = max(len(choice.name) for choice in listed)
    lines = [f"  {choice.name:{width}}  {choice.text}: {choice.reason}" for choice in listed]
    set_names = sorted(options_set & {name for choice in choices for name in choice.values})
    unchanged = f" Set: {', '.join('--' + name.replace('_', '-') for name in set_names)}." if set_names else ""
    facts = {
        "name": "auto",
        "choices": {choice.name: f"{choice.text}: {choice.reason}" for choice in listed},
        "fingerprint": {
            "num_cases": fingerprint.num_cases,
            "median_shape": list(fingerprint.median_shape),
            "spacing_mm": list(fingerprint.spacing_mm),
            "intensities": to_json(fingerprint.intensities),
            "voxels_by_label": {str(value): number for value, number in fingerprint.voxels_by_label.items()},
        },
        "estimated_memory_gib": round(plan.step_bytes / GIB, 2),
        "num_weights": plan.num_weights,
    }
    notice = "\n".join([f"preset auto chose these options; options that you set keep their value.{unchanged}", *lines])
    return Preset(config=chosen, notice=notice, facts=facts)


def _names(options: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(options))


def _patch_choices(
    config: TrainConfig, plan: Plan, fingerprint: Fingerprint, memory: Memory, options_set: frozenset[str]
) -> list[Choice]:
    patch, gib = plan.topology.patch_shape, memory.num_bytes / GIB
    batch_size = max(plan.batch_size, config.ranks)
    if not _has_own_network(config, options_set):
        need = f"a step takes about {plan.step_bytes / GIB:.1f} of {gib:.1f} GiB ({memory.source})"
    else:
        multiple = network_type(config.network).patch_multiple(config)
        patch = triple_of([max(side // multiple, 1) * multiple for side in patch])
        need = f"chosen for {NETWORK} in {gib:.1f} GiB ({memory.source})"
    shown, median = _by(patch), _by(fingerprint.median_shape)
    limits = {
        "memory": "as many as fit the memory",
        "data": "5 % of the voxels of the training set, but at least 2",
        "the user": "--batch-size",
    }
    share = (batch_size - round(batch_size * (1 - FOREGROUND_SHARE))) / batch_size
    return [
        _spacing(fingerprint),
        Choice(
            name="patch", values={"patch_shape": patch, "window_shape": patch, "overlap": 0.5}, text=f"{shown} voxels",
            reason=f"the largest part of the median case ({median}) that fits; {need}; also the sliding window, with overlap 0.5",
        ),
        Choice(
            name="batch", values={"batch_size": batch_size}, text=f"{batch_size} patches per step",
            reason=limits[plan.batch_limit] if batch_size == plan.batch_size else "one for each rank",
        ),
        Choice(
            name="foreground",
            values={"lesion_share": share, "bright_share": 0.0, "thick_share": 0.0},
            text=f"{share:.0%} of the patches on lesions",
            reason=f"a third of a batch, at least one patch; lesion voxels: {_classes(fingerprint)}",
        ),
    ]  # fmt: skip


def _spacing(fingerprint: Fingerprint) -> Choice:
    target, own = target_spacing_mm(fingerprint.source_spacings_mm, fingerprint.source_shapes), fingerprint.spacing_mm
    if all(abs(a / b - 1) <= SAME_SPACING for a, b in zip(own, target, strict=True)):
        reason = "nnU-Net's rule: median of the scans, 10th percentile for few thick slices"
    else:
        wanted = " ".join(f"{value:g}" for value in target)
        reason = f"as preprocessed; nnU-Net's rule gives {wanted} mm (preprocess --spacing-mm {wanted})"
    return Choice(name="spacing", values={}, text=f"{_by(own)} mm", reason=reason)


def _classes(fingerprint: Fingerprint) -> str:
    total = sum(math.prod(shape) for shape in fingerprint.shapes)
    shares = (f"label {value} {number / total:.2%}" for value, number in fingerprint.voxels_by_label.items())
    return ", ".join(shares) or "none"


def _has_own_network(config: TrainConfig, options_set: frozenset[str]) -> bool:
    return "network" in options_set and config.network != NETWORK


def _network_choices(config: TrainConfig, plan: Plan, options_set: frozenset[str]) -> list[Choice]:
    if _has_own_network(config, options_set):
        return []
    topology, stages = plan.topology, len(plan.channels)
    strides = [axes_text(stride) for stride in topology.strides]
    values = {
        "network": NETWORK,
        "channels": plan.channels,
        "strides": tuple(max(stride) for stride in topology.strides[1:]),
        "stage_strides": tuple(strides),
        "stage_kernels": tuple(map(axes_text, topology.kernels)),
        "encoder_blocks": plan.blocks,
    }
    fixed = {"stage_strides", "stage_kernels"} if options_set & {"strides", "stage_strides"} else set()
    return [
        Choice(
            name="network", values={name: value for name, value in values.items() if name not in fixed},
            text=f"{NETWORK}, {stages} stages of {' '.join(map(str, plan.channels))} channels, strides {' '.join(strides)}",
            reason="the patch is halved down to 4 to 7 voxels, the finest axes first; instance norm, leaky ReLU, deep supervision; "
            f"{plan.num_weights / 1e6:.1f} million weights",
        )
    ]  # fmt: skip


def _intensity_choices(config: TrainConfig, fingerprint: Fingerprint) -> list[Choice]:
    if fingerprint.modality != "CT":
        reason = "mean 0 and standard deviation 1 of each case and contrast, by preprocess"
        return [Choice(name="intensity", values={}, text="z-score", reason=reason)]
    figures = next(iter(fingerprint.intensities), None)
    if figures is None or figures.sd <= 0 or figures.low >= figures.high:
        reason = "the foreground has one value only"
        return [Choice(name="intensity", values={}, text="the window of preprocess as 0 to 1", reason=reason)]
    window = config.window_hu if config.window_hu else (figures.low, figures.high)
    low, high = (round((value - figures.mean) / figures.sd, 6) for value in window)
    return [
        Choice(
            name="intensity", values={"window_hu": window, "scaled_range": (low, high)},
            text=f"clip to {window[0]:g} to {window[1]:g} HU, then z-score",
            reason="percentiles 0.5 and 99.5, "
            f"mean {figures.mean:.1f} HU and standard deviation {figures.sd:.1f} HU of the lesions",
        )
    ]  # fmt: skip


def _optimization_choices(config: TrainConfig, options_set: frozenset[str]) -> list[Choice]:
    steps = config.steps if "steps" in options_set else STEPS
    epochs = max(1, steps // EPOCH_STEPS)
    sgd: dict[str, Any] = {
        "optimizer": "sgd", "momentum": 0.99, "learning_rate": 0.01, "weight_decay": 3e-5, "gradient_clip": 12.0,
    }  # fmt: skip
    if "optimizer" in options_set and config.optimizer != "sgd":
        sgd = {}
    choices = [
        Choice(
            name="optimizer", values=sgd,
            text="SGD, Nesterov momentum 0.99, learning rate 0.01, weight decay 3e-05, gradients clipped to norm 12",
            reason="nnU-Net's",
        ),
        Choice(name="schedule", values={"schedule": "polynomial"}, text="polynomial", reason="falls with (1 - t)^0.9"),
        Choice(
            name="steps",
            values={
                "steps": steps, "epoch_steps": EPOCH_STEPS,
                "validation_interval": max(1, round(epochs / NUM_VALIDATIONS)),
            },
            text=f"{steps:,} in epochs of {EPOCH_STEPS}",
            reason=f"nnU-Net trains {STEPS:,} steps; set --steps for a shorter training",
        ),
        Choice(
            name="augmentation", values={"augmentation": "full"},
            text="rotation, scaling, gamma, noise, mirroring", reason="nnU-Net's chances and ranges",
        ),
    ]  # fmt: skip
    return choices if sgd else choices[1:]


def _does_not_fit(error: DoesNotFitError, memory: Memory) -> UserInputError:
    smallest, fitting = error.smallest, error.fitting
    need = f"{smallest.step_bytes / GIB:.1f} GiB"
    patches = f"{smallest.batch_size} patch{'es' if smallest.batch_size > 1 else ''}"
    what = f"{patches} of {_by(smallest.topology.patch_shape)} voxels"
    if fitting is not None:
        own = " ".join(map(str, fitting.topology.patch_shape))
        do = f"use --patch-shape {own}, which fits, or omit the option; or use a device with {need}"
    else:
        do = (
            f"use a device or a --memory-gib of at least {need}; or set fewer --channels, such as 8 16 32; "
            "or set a smaller --patch-shape and --batch-size"
        )
    return UserInputError(
        "preset auto does not fit the memory.",
        seen=f"{memory.num_bytes / GIB:.1f} GiB ({memory.source})",
        expected=f"about {need} for {what} with {smallest.num_weights / 1e6:.1f} million weights",
        do=do,
    )


def step_memory(config: TrainConfig, *, ranks_on_node: int) -> Memory:
    """Return the memory for a step: that of --memory-gib, or the free memory of the device up to nnU-Net's target.

    Args:
        ranks_on_node: processes that share the memory of a CPU.
    """
    from medweave_steps.training.device import choose_device, free_bytes
    from medweave_steps.training.loop.stepper import uses_bfloat16

    device = choose_device(config.device)
    kind = "cuda" if device.type == "cuda" else "cpu"
    model = MEMORY_MODELS[kind, uses_bfloat16(config, device)]
    if config.memory_gib is not None:
        return Memory(model=model, num_bytes=config.memory_gib * GIB, source="--memory-gib")
    usable = free_bytes(device) * USABLE_SHARE / (ranks_on_node if kind == "cpu" else 1)
    most = MOST_GIB[kind] * GIB
    name = "GPU" if kind == "cuda" else "CPU"
    if usable > most:
        return Memory(model=model, num_bytes=most, source=f"nnU-Net's target for a {name}; --memory-gib sets another")
    return Memory(model=model, num_bytes=usable, source=f"{USABLE_SHARE:.0%} of the free memory of this {name}")


def _by(values: Sequence[float]) -> str:
    return " x ".join(f"{value:g}" for value in values)
