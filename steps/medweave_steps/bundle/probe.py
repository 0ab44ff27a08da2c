"""Determine by trial which inputs a network accepts and which outputs it has: its metadata may be wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.networks import OutputKind
from medweave_steps.runtime.imports import require

_MULTIPLES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOutput:
    """What a network gives.

    Attributes:
        kind: one logit per voxel and channel, or per class.
        channels: number of channels or classes.
        multiple: the number that each side of its input must be a multiple of.
        spatial_dims: 3, or 2 for a classification of images, whose input has no axis K.
    """

    kind: OutputKind
    channels: int
    multiple: int = 1
    spatial_dims: int = 3


def probe(network: Any, patch_shape: Triple, *, channels: int = 1, activation: str | None = None) -> NetworkOutput:
    """Run the network on zeros to find its output and the number that each side of its input must be a multiple of.

    Args:
        network: in evaluation mode.
        patch_shape: I, J, K; used if the network accepts no small shape, or gives one logit per class.
        channels: of the input.
        activation: of the Bundle's postprocessing, for the message.
    Raises:
        UserInputError: its output is neither on the grid of its input nor one logit per class.
    """
    for multiple in _MULTIPLES:
        # Three times the multiple is a multiple of nothing larger, so the first that fits is the answer.
        shape = (3 * multiple,) * 3
        output = _output(network, (1, channels, *shape))
        if not isinstance(output, str) and output[2:] == shape:
            return NetworkOutput(kind="voxels", channels=output[1], multiple=multiple)
    output = _output(network, (1, channels, *patch_shape))
    if not isinstance(output, str) and output[2:] == patch_shape:
        return NetworkOutput(kind="voxels", channels=output[1], multiple=math.gcd(*patch_shape))
    if not isinstance(output, str) and len(output) == 2:
        return NetworkOutput(kind="classes", channels=output[1])
    flat = _output(network, (1, channels, *patch_shape[:2])) if patch_shape[2] == 1 else ""
    if not isinstance(flat, str) and len(flat) == 2:
        return NetworkOutput(kind="classes", channels=flat[1], spatial_dims=2)
    seen = output if isinstance(output, str) else f"an output of shape {output}"
    shape_text = f"for an input of shape {(1, channels, *patch_shape)}: {seen}"
    raise not_supported(shape_text + (f", and the activation {activation}" if activation else ""))


def not_supported(seen: str, *, expected: str = "", do: str = "") -> UserInputError:
    """Return the error for a network whose output a model card cannot describe."""
    return UserInputError(
        "the network of the Bundle is not supported by segment.",
        seen=seen,
        expected=expected
        or "a network with an output of the input size: one channel (sigmoid), or the background and one channel for each label "
        "(softmax); or a classification with one logit per class",
        do=do or "use a supported network; name the channels of the input with --channel-names if there are several",
    )


def _output(network: Any, shape: tuple[int, ...]) -> tuple[int, ...] | str:
    """Return the shape of the output for zeros of a shape, or what happened instead."""
    torch = require("torch", extra="export")
    try:
        with torch.inference_mode():
            output = network(torch.zeros(shape))
    except Exception as error:  # whatever a network raises, it does not take this shape
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if not isinstance(output, torch.Tensor) or output.shape[0] != 1:
        return f"an output of type {type(output).__name__}"
    return tuple(output.shape)
