"""Unstructured pruning: single weights below a threshold are set to zero and stay there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from medweave_steps.prune.sensitivity import Sensitivities, prunable_weights
from medweave_steps.prune.structured import largest_within
from medweave_steps.runtime.imports import require

Masks = dict[str, Any]
"""Name of a weight to a tensor of its shape: True where the weight is retained."""
PRECISION = 1000
"""Steps of the bisection's range: the threshold is found to a thousandth of the weights."""


def masks_below(network: Any, threshold: float) -> Masks:
    """Return the masks that retain the weights whose magnitude is at least the threshold, and never a zero."""
    return {
        name: (weight.detach().abs() >= threshold) & (weight.detach() != 0)
        for name, weight in prunable_weights(network).items()
    }


def apply_masks(network: Any, masks: Mapping[str, Any]) -> None:
    """Set the weights outside the masks to zero, in place."""
    for name, weight in prunable_weights(network).items():
        if name in masks:
            weight.data.mul_(masks[name])


def masks_within(network: Any, *, is_within: Callable[[Any], bool]) -> Masks | None:
    """Return the masks of the largest threshold that the tolerance allows; None where it allows none.

    Args:
        network: torch module in evaluation mode; it is not changed.
        is_within: whether a network's validation loss is within the tolerance.
    """
    torch = require("torch", extra="train")
    magnitudes = torch.cat([weight.detach().abs().flatten() for weight in prunable_weights(network).values()])
    magnitudes = magnitudes[magnitudes > 0].sort().values
    count = min(PRECISION, len(magnitudes))

    def masks(number: int) -> Masks:
        """Return the masks without `number` parts of `count` of the weights that are left."""
        place = len(magnitudes) * number // count
        return masks_below(network, float(magnitudes[place]) if place < len(magnitudes) else float("inf"))

    def sparse(number: int) -> Any:
        copied = copy.deepcopy(network).eval()
        apply_masks(copied, masks(number))
        return copied

    number = largest_within(count, lambda number: is_within(sparse(number)))
    return masks(number) if number else None


def shrink_weights(network: Any, sensitivities: Sensitivities, rate: float) -> None:
    """Reduce the insensitive weights, in place: w by rate * w * relu(1 - S)."""
    for name, weight in prunable_weights(network).items():
        weight.data.mul_(1 - rate * (1 - sensitivities[name]).clamp(min=0))
