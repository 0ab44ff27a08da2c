"""The loss of a classification: cross-entropy of exclusive classes, or binary cross-entropy of each class.

Both are means over the cases of a batch, never over weights: the mean over ranks is then that of the global batch.
Suffix legend: B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from medweave_core.errors import UsageError
from medweave_steps.runtime.imports import require


def classification_loss(
    *,
    num_classes: int,
    is_multi_label: bool,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
) -> Callable[[Any, Any], Any]:
    """Return the loss.

    Args:
        class_weights: factor of the loss of each class where a case has it; None for 1.
        label_smoothing: in [0, 1): the truth is moved this far towards equal probabilities of the classes, or of having a class
            and not having it. Szegedy et al. 2016, CVPR.
    Returns:
        a callable (logits_BC, truth_BC of 0 and 1) -> scalar tensor; it raises UsageError where the network gives no logit per
        class.
    """
    functional = require("torch.nn.functional", extra="train")

    def weights_like(logits_BC: Any) -> Any:
        return None if class_weights is None else logits_BC.new_tensor(list(class_weights))

    def loss(logits_BC: Any, truth_BC: Any) -> Any:
        check_logits(tuple(logits_BC.shape), num_classes)
        weights = weights_like(logits_BC)
        if not is_multi_label:
            return functional.cross_entropy(logits_BC, truth_BC, weight=weights, label_smoothing=label_smoothing)
        smoothed = truth_BC * (1 - label_smoothing) + label_smoothing / 2
        return functional.binary_cross_entropy_with_logits(logits_BC, smoothed, pos_weight=weights)

    return loss


def balanced_weights(counts: Sequence[int], num_cases: int, *, is_multi_label: bool) -> list[float]:
    """Return the weight of each class by which all classes count equally in the loss.

    Exclusive classes: all cases over (classes times cases of the class). Multi-label: the cases without the class over those with
    it; 1 for a class that all cases have.

    Args:
        counts: training cases of each class, each at least 1.
    Source: King and Zeng 2001, Political Analysis 9(2):137-163; scikit-learn's `class_weight="balanced"`.
    """
    if not is_multi_label:
        return [num_cases / (len(counts) * count) for count in counts]
    return [(num_cases - count) / count or 1.0 for count in counts]


def check_logits(seen: tuple[int, ...], num_classes: int) -> None:
    """Refuse the output of a network that gives no logit per class.

    Args:
        seen: shape of the output.
    Raises:
        UsageError: the network is for another task.
    """
    if seen[1:] != (num_classes,):
        raise UsageError(
            "the network does not classify images.",
            seen=f"an output of shape {seen}",
            expected=f"one logit for each of {num_classes} classes: shape ({seen[0]}, {num_classes})",
            do="choose a --network for classification; `medweave-step train --help` lists the networks",
        )
