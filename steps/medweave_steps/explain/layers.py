"""The layers of a network that give a grid of features, and the choice of the one that is explained."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.explanations import ExplainedLayer
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import Triple
from medweave_core.errors import InternalError, UserInputError
from medweave_steps.explain.network import EXTRA, ExplainedNetwork
from medweave_steps.runtime.imports import require

COARSEST = 8
"""Voxels of the input for one feature, along each axis, at most: coarser maps cannot show a structure."""
_MOST_MATCHES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLayer:
    """A module whose output is a grid of features.

    Attributes:
        kind: class of the module.
        grid: features along I, J and, for a network of volumes, K.
        is_candidate: True for a convolution other than the projection of a shortcut (one voxel wide, with a stride).
    """

    name: str
    kind: str
    grid: tuple[int, ...]
    is_candidate: bool

    def __str__(self) -> str:
        return f"{self.name} ({grid_text(self.grid)})"


def grid_text(grid: Sequence[int]) -> str:
    """Return the shape of a grid for messages: `12 x 14 x 12`."""
    return " x ".join(map(str, grid))


def feature_layers(network: ExplainedNetwork, card: ModelCard) -> list[FeatureLayer]:
    """Return the modules whose output is a grid of features, in the order in which the network computes them.

    Their grids are those of one forward pass of an image of zeros.
    """
    torch = require("torch", extra=EXTRA)
    layers: dict[str, FeatureLayer] = {}
    hooks = []
    for name, module in network.module.named_modules():
        layer = name.removeprefix(network.prefix)
        if layer and name.startswith(network.prefix):
            hooks.append(module.register_forward_hook(_recorder(layer, layers)))
    image = torch.zeros((1, card.input.channels, *card.input.patch_shape), device=network.device)
    try:
        with torch.inference_mode():
            network.module(image)
    finally:
        for hook in hooks:
            hook.remove()
    return list(layers.values())


def _recorder(name: str, layers: dict[str, FeatureLayer]) -> Any:
    torch = require("torch", extra=EXTRA)

    def record(module: Any, _: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.ndim in (4, 5):
            layers.pop(name, None)  # a module that runs again is as late as its last run
            grid = tuple(int(side) for side in output.shape[2:])
            layers[name] = FeatureLayer(
                name=name, kind=type(module).__name__, grid=grid, is_candidate=_is_candidate(module)
            )

    return record


def _is_candidate(module: Any) -> bool:
    nn = require("torch", extra=EXTRA).nn
    if not isinstance(module, nn.Conv2d | nn.Conv3d):
        return False
    return bool(max(module.kernel_size) > 1 or max(module.stride) == 1)


def choose_layer(layers: Sequence[FeatureLayer], card: ModelCard, wanted: str | None) -> ExplainedLayer:
    """Return the layer that is explained.

    By default this is the last convolution with at least one feature for 8 voxels of the input along each axis; where there is
    none, the last one of the finest grid. If it belongs to blocks with the same grid, it is the output of the outermost one: behind
    a residual block, the network sees the sum of the convolution and the shortcut.

    Args:
        layers: as `feature_layers` returns them.
        wanted: name of another layer.
    Raises:
        UserInputError: there is no such layer, or the network has no convolution.
    """
    shape = card.input.patch_shape
    layer = _default(layers, card) if wanted is None else _named(layers, card, wanted)
    return ExplainedLayer(
        name=layer.name, kind=layer.kind, grid=layer.grid, input_shape=shape, is_default=wanted is None
    )


def is_coarse(layer: ExplainedLayer) -> bool:
    """Return True if a feature of a layer covers more than 8 voxels of the input along an axis."""
    return not _is_fine(layer.grid, layer.input_shape)


def _is_fine(grid: Sequence[int], shape: Triple) -> bool:
    # Convolutions without padding lose a part of a cell at the border: 100 voxels give 12 features for a stride of 8.
    return all(features >= side // COARSEST for features, side in zip(grid, shape, strict=False))


def _default(layers: Sequence[FeatureLayer], card: ModelCard) -> FeatureLayer:
    candidates = [layer for layer in layers if layer.is_candidate]
    if not candidates:
        raise UserInputError(
            f"the network of model '{card.name}' has no convolution to explain.",
            seen=f"{len(layers)} other layers with a grid of features: {_examples(layers) or 'none'}",
            expected="a 2-D or 3-D convolution",
            do="name one of its layers with --layer" if layers else "use a convolutional network",
        )
    fine = [layer for layer in candidates if _is_fine(layer.grid, card.input.patch_shape)]
    finest = max(math.prod(layer.grid) for layer in candidates)
    last = (fine or [layer for layer in candidates if math.prod(layer.grid) == finest])[-1]
    around = [layer for layer in layers if last.name.startswith(f"{layer.name}.") and layer.grid == last.grid]
    blocks = [layer for layer in around if layer.kind != "Sequential"]
    return min(blocks, key=lambda block: len(block.name), default=last)


def _named(layers: Sequence[FeatureLayer], card: ModelCard, wanted: str) -> FeatureLayer:
    by_name = {layer.name: layer for layer in layers}
    if wanted in by_name:
        return by_name[wanted]
    matches = difflib.get_close_matches(wanted, list(by_name), n=_MOST_MATCHES)
    candidates = [layer for layer in layers if layer.is_candidate] or list(layers)
    close = ", ".join(str(by_name[name]) for name in matches)
    raise UserInputError(
        f"the network of model '{card.name}' has no layer '{wanted}' with a grid of features.",
        seen=f"--layer {wanted}",
        expected=f"a layer such as {_examples(candidates)}; input {grid_text(card.input.patch_shape)}",
        do=f"write one of the closest matches: {close}" if close else "name one of these layers",
    )


def _examples(layers: Sequence[FeatureLayer]) -> str:
    """Return the last layer of each grid, with its grid."""
    return ", ".join(str(layer) for layer in {layer.grid: layer for layer in layers}.values())


def no_gradient(card: ModelCard, layer: ExplainedLayer, seen: str) -> UserInputError:
    """Return the error that Grad-CAM cannot be computed at a layer."""
    return UserInputError(
        f"Grad-CAM cannot be computed at the layer '{layer.name}' of model '{card.name}'.",
        seen=seen,
        expected="a layer whose output the network passes on to its classes, and does not change in place",
        do="name another layer with --layer, such as the convolution before it",
    )


def not_finite(card: ModelCard, case_id: str) -> InternalError:
    """Return the error that a map has values that are NaN or infinite."""
    return InternalError(
        f"the Grad-CAM map of {case_id} has values that are NaN or infinite.",
        seen=f"gradients of model '{card.name}' that are not finite",
        expected="finite gradients",
        do="do not use this model; train it again, or check its weights",
    )
