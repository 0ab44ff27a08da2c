"""The torch network of a declared stack of layers. Suffix legend: B batch, C channel, I J K voxel axes.

Imports torch: `io.model.network` imports this module when a network is built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from medweave_steps.networks.layers import checked_layer, shapes_after, sides_of

_FUNCTIONS = {
    "relu": nn.ReLU, "leaky-relu": lambda: nn.LeakyReLU(0.01), "gelu": nn.GELU, "silu": nn.SiLU, "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}  # fmt: skip
_CONV = {2: nn.Conv2d, 3: nn.Conv3d}
_BATCH = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_INSTANCE = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
_POOL = {
    ("max", 2): nn.MaxPool2d, ("max", 3): nn.MaxPool3d, ("average", 2): nn.AvgPool2d, ("average", 3): nn.AvgPool3d,
}  # fmt: skip
_ALL = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


class LayerStack(nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """Layers one after the other, from images [B, C, I, J, 1] or volumes [B, C, I, J, K].

    A stack that ends in a dense layer gives logits [B, outputs], one that ends in a convolution [B, outputs, I, J, K]. The image
    is flattened before the first dense layer.

    Args:
        outputs: number of outputs of the last layer.
        input_shape: I, J, K; images have K = 1 and take layers of two axes.
        layers: as `networks.layers.read_layers` returns them.
    Raises:
        ValueError: a layer is not valid, or does not fit the shape before it.
    """

    def __init__(
        self, *, in_channels: int, outputs: int, input_shape: Sequence[int], layers: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__()
        self.is_flat = input_shape[2] == 1
        sides = list(input_shape[:2] if self.is_flat else input_shape)
        checked = [checked_layer(place, layer) for place, layer in enumerate(layers)]
        modules: list[Any] = []
        before: tuple[int, ...] = (in_channels, *sides)
        shapes = shapes_after(checked, in_channels=in_channels, outputs=outputs, sides=sides)
        for layer, after in zip(checked, shapes, strict=True):
            modules += _modules(layer, before, after)
            before = after
        self.layers = nn.Sequential(*modules)
        self.has_voxels = len(before) > 1

    def forward(self, image_BCIJK: Any) -> Any:
        """Return logits [B, outputs] or [B, outputs, I, J, K]."""
        logits = self.layers(image_BCIJK.squeeze(-1) if self.is_flat else image_BCIJK)
        return logits.unsqueeze(-1) if self.is_flat and self.has_voxels else logits


def _modules(layer: Mapping[str, Any], before: tuple[int, ...], after: tuple[int, ...]) -> list[Any]:
    """Return the torch modules of a layer, for the channels and sides before and after it."""
    (channels, *sides), axes = before, len(before) - 1
    match layer["kind"]:
        case "dense":
            return [*([nn.Flatten()] if sides else []), nn.Linear(math.prod(before), after[0])]
        case "conv":
            kernel = sides_of(layer["kernel"], sides)
            options = {"stride": sides_of(layer["stride"], sides), "padding": [side // 2 for side in kernel]}
            return [_CONV[axes](channels, after[0], kernel, groups=layer["groups"], **options)]
        case "norm":
            return [_norm(layer, channels, axes)]
        case "activation":
            return [_FUNCTIONS[layer["function"]]()]
        case "pool" if layer["size"] == "all" and layer["type"] == "average":
            return [_ALL[axes](1)]
        case "pool":
            return [_POOL[layer["type"], axes](sides_of(layer["size"], sides))]
        case _:
            return [nn.Dropout(layer["rate"])]


def _norm(layer: Mapping[str, Any], channels: int, axes: int) -> Any:
    if layer["type"] == "group":
        return nn.GroupNorm(layer["groups"], channels)
    return _INSTANCE[axes](channels, affine=True) if layer["type"] == "instance" else _BATCH[axes](channels)
