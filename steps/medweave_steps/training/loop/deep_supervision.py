"""Deep supervision: a network's lower resolutions are trained on the label, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from medweave_steps.runtime.imports import require

Loss = Callable[[Any, Any], Any]


def output_weights(number: int) -> list[float]:
    """Return the weight of each output, of full resolution first: 1, 1/2, 1/4, ..., divided by their sum."""
    halves = [0.5**place for place in range(number)]
    return [weight / sum(halves) for weight in halves]


def with_deep_supervision(loss: Loss) -> Loss:
    """Return a loss that also takes a list of logits, of full resolution first.

    It is the weighted sum of the losses of the outputs, each against the label at the output's resolution by nearest neighbor. For
    one tensor of logits it is the loss itself.

    Args:
        loss: callable (logits_BCIJK, label_BCIJK) -> scalar tensor.
    Source: Isensee et al. 2021, Nat Methods 18:203; Lee et al. 2015, AISTATS, "Deeply-Supervised Nets".
    """

    def weighted(logits_BCIJK: Any, label_BCIJK: Any) -> Any:
        if not isinstance(logits_BCIJK, Sequence):
            return loss(logits_BCIJK, label_BCIJK)
        weights = output_weights(len(logits_BCIJK))
        parts = [
            weight * loss(logits, _at_resolution(label_BCIJK, logits.shape[2:]))
            for weight, logits in zip(weights, logits_BCIJK, strict=True)
        ]
        return sum(parts[1:], parts[0])

    return weighted


def in_dtype(logits_BCIJK: Any, dtype: Any) -> Any:
    """Return logits, or a list of them, in another dtype."""
    if isinstance(logits_BCIJK, Sequence):
        return [logits.to(dtype) for logits in logits_BCIJK]
    return logits_BCIJK.to(dtype)


def _at_resolution(label_BCIJK: Any, shape: Sequence[int]) -> Any:
    if tuple(label_BCIJK.shape[2:]) == tuple(shape):
        return label_BCIJK
    resize = require("torch", extra="train").nn.functional.interpolate
    return resize(label_BCIJK.float(), size=tuple(shape), mode="nearest-exact").to(label_BCIJK.dtype)
