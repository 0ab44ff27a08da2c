"""The networks that `train --network` builds, by name. Nothing here imports torch.

medweave's own are in `BUILT_IN`; other packages register theirs as entry points of the group `medweave.networks`:

    [project.entry-points."medweave.networks"]
    my-network = "my_package.network:NETWORK"

where the object is a `NetworkType`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.model import ModelCard
from medweave_core.documents.closest_match import closest
from medweave_core.errors import StepError, UsageError
from medweave_steps.networks.classification import CLASSIFIERS
from medweave_steps.networks.classification import DEFAULT as DEFAULT_CLASSIFIER
from medweave_steps.networks.layers import LAYER_STACK, MLP, MlpOptions
from medweave_steps.networks.layers import NAME as LAYER_STACK_NAME
from medweave_steps.networks.types import CpuKernel, NetworkOptions, NetworkType, OutputKind
from medweave_steps.networks.user_code import is_user_class, user_network
from medweave_steps.runtime import plugins
from medweave_steps.runtime.options import Variants, check_option, option

__all__ = ["LAYER_STACK_NAME", "CpuKernel", "NetworkOptions", "NetworkType", "OutputKind", "is_user_class"]

GROUP: plugins.Group = "medweave.networks"

DEFAULTS: Mapping[OutputKind, str] = {"voxels": "unet", "classes": DEFAULT_CLASSIFIER}
"""Network of a task unless `--network` names another."""

FILTERS = (8, 16, 32, 64)
POOLINGS = len(FILTERS) - 1
GROUPS = {"as_described": 8, "as_published": 19}
"""Of DistMIS' group normalisation: of channels, and of voxels along the depth (152, 76, 38 and 19 are multiples of 19)."""
NUM_GROUPS = 8
"""Of the U-Net's group normalisation, DistMIS' number."""


def _unet_arguments(config: Any, channels: int) -> dict[str, Any]:
    """Return the arguments of MONAI's U-Net.

    Batch norm is the default, because its statistics are fixed after training: the result does not depend on the window's size, and
    inference programs fold it into the convolutions. ReLU, because it costs less than PReLU and loses less in quantization.

    Source: Çiçek et al. 2016, MICCAI, "3D U-Net"; Kerfoot et al. 2019, STACOM, for MONAI's form of it.
    """
    return {
        "spatial_dims": 3,
        "in_channels": channels,
        "out_channels": 1,
        "channels": list(config.channels),
        "strides": list(config.strides),
        "num_res_units": config.residual_units,
        "norm": _unet_norm(config),
        "act": "RELU",
    }


def _unet_norm(config: Any) -> Any:
    """Return MONAI's name of the normalization; groups are DistMIS' number, or as many as divide the channels of every level."""
    if config.norm == "group":
        return ["GROUP", {"num_groups": math.gcd(NUM_GROUPS, *config.channels)}]
    return ["INSTANCE", {"affine": True}] if config.norm == "instance" else "BATCH"


def _check_depth(config: Any) -> None:
    """Check that patches and windows have the one depth that the published DistMIS network takes."""
    depth, window_depth = config.patch_shape[2], config.window_shape[2]
    check_option(depth == window_depth, "window_shape", config.window_shape, f"the depth of --patch-shape, {depth}")
    multiple = 2**POOLINGS * (GROUPS["as_published"] if config.norm == "group" else 1)
    check_option(depth % multiple == 0, "patch_shape", config.patch_shape, f"a depth that is a multiple of {multiple}")


RESENC_BLOCKS = (1, 3, 4, 6)
"""Residual blocks of the first stages of the encoder, and of all further ones; Isensee et al. 2024, MICCAI, "nnU-Net Revisited"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResEncOptions(NetworkOptions):
    """Options of the residual-encoder U-Net, for each of its stages from full resolution down."""

    stage_strides: tuple[str, ...] = option(
        "strides of the stages of resenc-unet along I J K, such as 1x1x1 2x2x1 (default: --strides along all axes)",
        default=(), metavar="IxJxK",
    )  # fmt: skip
    stage_kernels: tuple[str, ...] = option(
        "convolution kernels of the stages of resenc-unet along I J K, such as 3x3x1 3x3x3 (default: 3x3x3)",
        default=(), metavar="IxJxK",
    )  # fmt: skip
    encoder_blocks: tuple[int, ...] = option(
        "residual blocks of the stages of resenc-unet (default: 1 3 4 6 6 ...)", default=(), metavar="N"
    )


def resenc_blocks(stages: int) -> tuple[int, ...]:
    """Return the default number of residual blocks of each stage of the encoder."""
    return (*RESENC_BLOCKS, *(RESENC_BLOCKS[-1:] * stages))[:stages]


def axes_text(values: Sequence[int]) -> str:
    """Return numbers along I J K as the options have them, such as 2x2x1."""
    return "x".join(map(str, values))


def _axes_of(config: Any, name: str) -> list[list[int]]:
    """Return I J K of each stage from a network's option.

    Raises:
        UsageError: an entry is not of the form 2x2x1, or there is not one for each stage.
    """
    texts = getattr(config.network_options, name)
    parts = [[int(word) if word.isdecimal() else 0 for word in text.split("x")] for text in texts]
    stages = len(config.channels)
    fits = len(parts) == stages and all(len(axes) == 3 and min(axes) >= 1 for axes in parts)
    check_option(fits, name, texts, f"{stages} entries such as 2x2x1, one for each of --channels")
    return parts


def resenc_strides(config: Any) -> list[list[int]]:
    """Return the strides of all stages along I J K; the first are 1."""
    if config.network_options.stage_strides:
        return _axes_of(config, "stage_strides")
    return [[stride] * 3 for stride in (1, *config.strides)]


def _resenc_arguments(config: Any, channels: int) -> dict[str, Any]:
    stages, options = len(config.channels), config.network_options
    return {
        "in_channels": channels,
        "out_channels": 1,
        "channels": list(config.channels),
        "strides": resenc_strides(config),
        "kernels": _axes_of(config, "stage_kernels") if options.stage_kernels else [[3, 3, 3]] * stages,
        "blocks": list(options.encoder_blocks or resenc_blocks(stages)),
    }


def _resenc_multiples(strides: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers that the sides of a patch along I J K must be multiples of."""
    return [math.prod(axis) for axis in zip(*strides, strict=True)]


def _check_resenc(config: Any) -> None:
    arguments, stages = _resenc_arguments(config, 1), len(config.channels)
    blocks = config.network_options.encoder_blocks
    fits = not blocks or (len(blocks) == stages and min(blocks) >= 1)
    check_option(fits, "encoder_blocks", blocks, f"{stages} numbers, one for each of --channels, each >= 1")
    first = arguments["strides"][0]
    check_option(max(first) == 1, "stage_strides", config.network_options.stage_strides, "1x1x1 first")
    is_odd = all(side % 2 for kernel in arguments["kernels"] for side in kernel)
    check_option(is_odd, "stage_kernels", config.network_options.stage_kernels, "odd numbers")
    for name in ("patch_shape", "window_shape"):
        shape, multiples = getattr(config, name), _resenc_multiples(arguments["strides"])
        fits = not any(side % multiple for side, multiple in zip(shape, multiples, strict=True))
        check_option(fits, name, shape, f"multiples of {' '.join(map(str, multiples))}, the products of the strides")


_DISTMIS = "medweave_steps.networks.distmis.DistMisUnet"

BUILT_IN: Mapping[str, NetworkType] = {
    "unet": NetworkType(
        class_name="monai.networks.nets.UNet",
        arguments=_unet_arguments,
        out_channels="out_channels",
        patch_multiple=lambda config: math.prod(config.strides),
        cpu_kernels=("one-channel", "transposed"),
        has_lean_imports=True,
    ),
    "distmis-as-described": NetworkType(
        class_name=_DISTMIS,
        arguments=lambda config, channels: {"variant": "as_described", "in_channels": channels, "norm": config.norm},
        patch_multiple=lambda config: 2**POOLINGS,
    ),
    "distmis-as-published": NetworkType(
        class_name=_DISTMIS,
        arguments=lambda config, channels: {
            "variant": "as_published",
            "in_channels": channels,
            "norm": config.norm,
            "depth": config.patch_shape[2],
        },
        patch_multiple=lambda config: 2**POOLINGS,
        check=_check_depth,
    ),
    "resenc-unet": NetworkType(
        class_name="medweave_steps.networks.resenc.ResEncUnet",
        arguments=_resenc_arguments,
        out_channels="out_channels",
        patch_multiple=lambda config: math.gcd(*_resenc_multiples(resenc_strides(config))),
        axis_multiples=lambda arguments: _resenc_multiples(arguments["strides"]),
        check=_check_resenc,
        Options=ResEncOptions,
    ),
    **CLASSIFIERS,
    LAYER_STACK_NAME: LAYER_STACK,
    "mlp": MLP,
}


def network_names() -> tuple[str, ...]:
    """Return the names of all installed networks, medweave's own first."""
    return (*BUILT_IN, *(name for name in plugins.names_of(GROUP) if name not in BUILT_IN))


def network_type(name: str) -> NetworkType:
    """Return the network of this name; `module:Class` is code of the user, which is not imported here.

    Raises:
        UsageError: it does not exist; the message names the closest match.
        BackendMissingError: another package defines it and cannot be imported.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if is_user_class(name):
        return user_network(name)
    names = network_names()
    if name in names:
        found: NetworkType = plugins.load(
            GROUP, name, expected=f"a {__name__}.NetworkType", is_valid=lambda value: isinstance(value, NetworkType)
        )
        return found
    raise UsageError(
        f"unknown network '{name}'.",
        seen=f"--network {name}",
        expected=f"one of {', '.join(names)}",
        do=closest(name, names) or "choose one of the listed networks",
    )


def type_of_class(class_name: str) -> NetworkType | None:
    """Return the first network with this class, None where no installed package registers one.

    Packages are imported only if their name is that of the class' package; one that cannot be imported is passed over.
    """
    for network in BUILT_IN.values():
        if network.class_name == class_name:
            return network
    if is_user_class(class_name):
        return None
    for name in plugins.names_of(GROUP, package=class_name.partition(".")[0]):
        try:
            network = network_type(name)
        except StepError:
            continue
        if network.class_name == class_name:
            return network
    return None


def names_for(kind: OutputKind, spatial_dims: int | None = None) -> list[str]:
    """Return the installed networks with an output of this kind; packages that cannot be imported are passed over.

    Args:
        spatial_dims: 2 for those that take images, 3 for those that take volumes; None for any.
    """
    names = []
    for name in network_names():
        try:
            network = network_type(name)
        except StepError:
            continue
        if network.output_kind == kind and spatial_dims in (None, *network.spatial_dims):
            names.append(name)
    return names


def check_kind(name: str, kind: OutputKind, *, task: str) -> None:
    """Refuse a network whose output is not what the task needs.

    Raises:
        UsageError: lists the networks that fit.
    """
    own = network_type(name).output_kind
    words = {"voxels": "one logit per voxel", "classes": "one logit per class"}
    if own not in (None, kind):
        raise UsageError(
            f"the network '{name}' does not fit the task '{task}'.",
            seen=f"--network {name}, which gives {words[str(own)]}",
            expected=f"a network that gives {words[kind]}: {', '.join(names_for(kind))}",
            do=f"choose one of these, such as --network {DEFAULTS[kind]}",
        )


def multiples_of(card: ModelCard) -> tuple[int, int, int]:
    """Return the numbers that the sides of a patch along I J K must be multiples of, for a trained network."""
    name, alike = card.architecture.get("class"), (card.input.patch_multiple,) * 3
    network = type_of_class(name) if isinstance(name, str) else None
    if network is None or network.axis_multiples is None:
        return alike
    try:
        i, j, k = network.axis_multiples(card.architecture["arguments"])
        return (i, j, k) if min(i, j, k) >= 1 else alike
    except (KeyError, TypeError, ValueError):  # of a damaged card: building the network reports it
        return alike


def multiples_text(multiples: Sequence[int]) -> str:
    """Return these numbers for a message: one, if they are all equal."""
    return " ".join(map(str, multiples if len(set(multiples)) > 1 else multiples[:1]))


OPTIONS = Variants(
    selector="network",
    built_in=lambda: (
        {"resenc-unet": ResEncOptions, "mlp": MlpOptions}
        | {name: network.Options for name, network in CLASSIFIERS.items()}
    ),
    options_of=lambda name: network_type(name).Options,
)
