"""Determine by trial which inputs a network accepts and which outputs it has: its metadata may be wrong."""

from __future__ import annotations

import math
from typing import Any

from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require

_MULTIPLES = (1, 2, 4, 8, 16, 32)


def probe(network: Any, patch_shape: Triple, *, activation: str | None) -> tuple[str, int]:
    """Run the network on zeros to find its activation and the number that each side of its input must be a multiple of.

    Args:
        network: in evaluation mode.
        patch_shape: I, J, K; used if the network accepts no small shape.
        activation: of the Bundle's postprocessing: `sigmoid`, `softmax`, or None if it names none.
    Returns:
        `sigmoid` for one output channel or `softmax` for two, and the number of which each side must be a multiple.
    Raises:
        UserInputError: it is not a 3-D network from one channel to one or two channels on the same grid.
    """
    channels: int | str = ""
    for multiple in _MULTIPLES:
        # Three times the multiple is a multiple of nothing larger, so the first that fits is the answer.
        channels = _channels(network, (3 * multiple,) * 3)
        if isinstance(channels, int):
            break
    else:
        multiple, channels = math.gcd(*patch_shape), _channels(network, patch_shape)
    kind = {1: "sigmoid", 2: "softmax"}.get(channels) if isinstance(channels, int) else None
    if kind is None or activation not in (None, kind):
        seen = f"{channels} output channels" if isinstance(channels, int) else channels
        raise UserInputError(
            "the network of the Bundle is not supported by segment.",
            seen=seen + (f", and the activation {activation}" if activation else ""),
            expected="a 3-D network with one input channel and an output of the input size: one channel (sigmoid), "
            "or two (softmax over background and lesion)",
            do="use a supported network; a Bundle with several classes cannot be imported. A model folder that medweave trained "
            "needs no import: use it as it is",
        )
    return kind, multiple


def _channels(network: Any, shape: Triple) -> int | str:
    torch = require("torch", extra="export")
    try:
        with torch.inference_mode():
            output = network(torch.zeros((1, 1, *shape)))
    except Exception as error:  # whatever a network raises, it does not take this shape
        text = " ".join(str(error).split())[:120]
        return f"for an input of shape {(1, 1, *shape)}: {type(error).__name__}: {text}"
    if not isinstance(output, torch.Tensor):
        return f"an output of type {type(output).__name__}"
    if tuple(output.shape[2:]) != shape or output.shape[0] != 1:
        return f"an output of shape {tuple(output.shape)} for an input of shape {(1, 1, *shape)}"
    return int(output.shape[1])
