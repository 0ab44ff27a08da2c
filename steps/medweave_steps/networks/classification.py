"""The networks for classification that medweave brings, and their options. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_steps.networks.types import NetworkOptions, NetworkType
from medweave_steps.runtime.options import check_option, option

DEFAULT = "mobilenet"
"""Network of a classification unless `--network` names another: the smallest, for images and volumes."""

_CLASSES = "medweave_steps.networks.classifiers"
_MONAI_CLASSES = "medweave_steps.networks.monai_classifiers"
STAGE_CHANNELS = (64, 128, 256, 512)
"""Of the residual networks at full width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierOptions(NetworkOptions):
    """Options of the networks for classification."""

    width: float = option(
        "width multiplier of the networks for classification: the number of channels of every layer, as a fraction of the full "
        "network's; mobilenet was published with 1, 0.5 and 0.25",
        default=1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VggOptions(ClassifierOptions):
    """Options of VGG16."""

    dropout: float = option("dropout rate before the last two dense layers of vgg16, in training", default=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class EcgOptions(ClassifierOptions):
    """Options of the residual network for an ECG."""

    block_dropout: float = option(
        "dropout rate before every convolution of a block of ecg-resnet, in training", default=0.2
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResAttNetOptions(ClassifierOptions):
    """Options of 3D-ResAttNet."""

    attention_stages: tuple[int, ...] = option(
        "stages of resattnet18 and resattnet34 (1 to 4) that end with a self-attention over all their voxels; the memory for it "
        "grows with the square of their number, which is 64 times smaller in each further stage",
        default=(4,), metavar="N",
    )  # fmt: skip


def spatial_dims_of(config: Any) -> int:
    """Return 2 for images, which have one slice, and 3 for volumes."""
    return 2 if config.patch_shape[2] == 1 else 3


def scaled_channels(channels: Sequence[int], width: float) -> list[int]:
    """Return numbers of channels times the width multiplier, rounded, each at least 1."""
    return [max(1, round(number * width)) for number in channels]


def _check(config: Any) -> None:
    options = config.network_options
    check_option(0 < options.width <= 1, "width", options.width, "more than 0, at most 1")
    if isinstance(options, VggOptions):
        check_option(0 <= options.dropout < 1, "dropout", options.dropout, "0 or more, and less than 1")
    if isinstance(options, EcgOptions):
        check_option(
            0 <= options.block_dropout < 1, "block_dropout", options.block_dropout, "0 or more, and less than 1"
        )
    if isinstance(options, ResAttNetOptions):
        stages = options.attention_stages
        fits = len(set(stages)) == len(stages) and set(stages) <= set(range(1, len(STAGE_CHANNELS) + 1))
        check_option(fits, "attention_stages", stages, f"numbers from 1 to {len(STAGE_CHANNELS)}, each once")


def _vgg_arguments(config: Any, channels: int) -> dict[str, Any]:
    options = config.network_options
    return {
        "in_channels": channels, "num_classes": 1, "image_shape": list(config.patch_shape[:2]), "width": options.width,
        "dropout": options.dropout,
    }  # fmt: skip


def _mobilenet_arguments(config: Any, channels: int) -> dict[str, Any]:
    width = config.network_options.width
    return {"spatial_dims": spatial_dims_of(config), "in_channels": channels, "num_classes": 1, "width": width}


def _resnet(block: str, layers: Sequence[int]) -> NetworkType:
    def arguments(config: Any, channels: int) -> dict[str, Any]:
        return {
            "spatial_dims": spatial_dims_of(config), "in_channels": channels, "num_classes": 1, "block": block,
            "layers": list(layers), "channels": scaled_channels(STAGE_CHANNELS, config.network_options.width),
        }  # fmt: skip

    return NetworkType(class_name=f"{_MONAI_CLASSES}.ResNet", arguments=arguments, **_COMMON)


def _densenet_arguments(config: Any, channels: int) -> dict[str, Any]:
    features, growth = scaled_channels((64, 32), config.network_options.width)
    return {
        "spatial_dims": spatial_dims_of(config), "in_channels": channels, "num_classes": 1,
        "init_features": features, "growth_rate": growth, "blocks": [6, 12, 24, 16],
    }  # fmt: skip


def _ecg_arguments(config: Any, channels: int) -> dict[str, Any]:
    options, shape = config.network_options, tuple(config.patch_shape)
    check_option(shape[1:] == (1, 1), "patch_shape", shape, "J = K = 1, such as 1300 1 1: ecg-resnet takes signals")
    return {"in_channels": channels, "num_classes": 1, "width": options.width, "dropout": options.block_dropout}


def _resattnet(layers: Sequence[int]) -> NetworkType:
    def arguments(config: Any, channels: int) -> dict[str, Any]:
        options = config.network_options
        return {
            "in_channels": channels, "num_classes": 1, "layers": list(layers),
            "channels": scaled_channels(STAGE_CHANNELS, options.width), "attention_stages": sorted(options.attention_stages),
        }  # fmt: skip

    return NetworkType(
        class_name="medweave_steps.networks.resattnet.ResAttNet",
        arguments=arguments,
        least_side=32,
        **{**_COMMON, "spatial_dims": (3,), "Options": ResAttNetOptions},
    )


_COMMON: Mapping[str, Any] = {
    "output_kind": "classes", "spatial_dims": (2, 3), "out_channels": "num_classes", "check": _check,
    "Options": ClassifierOptions, "has_lean_imports": True,
}  # fmt: skip

CLASSIFIERS: Mapping[str, NetworkType] = {
    "mobilenet": NetworkType(class_name=f"{_CLASSES}.MobileNet", arguments=_mobilenet_arguments, **_COMMON),
    "vgg16": NetworkType(
        class_name=f"{_CLASSES}.Vgg16",
        arguments=_vgg_arguments,
        least_side=32,
        **{**_COMMON, "spatial_dims": (2,), "Options": VggOptions},
    ),
    "resnet18": _resnet("basic", (2, 2, 2, 2)),
    "resnet50": _resnet("bottleneck", (3, 4, 6, 3)),
    "densenet121": NetworkType(
        class_name=f"{_MONAI_CLASSES}.DenseNet", arguments=_densenet_arguments, least_side=32, **_COMMON
    ),
    "resattnet18": _resattnet((2, 2, 2, 2)),
    "resattnet34": _resattnet((3, 4, 6, 3)),
    "ecg-resnet": NetworkType(
        class_name="medweave_steps.networks.ecg.EcgResNet",
        arguments=_ecg_arguments,
        **{**_COMMON, "spatial_dims": (2,), "Options": EcgOptions},
    ),
}
