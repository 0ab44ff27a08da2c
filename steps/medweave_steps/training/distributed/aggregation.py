"""The aggregation rules of shared training: pure functions over flat vectors, the same bits in every process.

| Rule            | A worker sends                      | The server computes                          |
|-----------------|-------------------------------------|----------------------------------------------|
| `sync-gradient` | the gradient of every step          | `mean_gradient`; then the same step everywhere |
| `sync-weights`  | its weights after some local steps  | `weighted_mean`                              |
| `async-weights` | its weights after some local steps  | `pulled`, at each arrival                    |
| `async-gradient`| the gradient of every step          | a step of its own optimizer, at each arrival |

Floating-point sums depend on their order: synchronous rules sum in order of rank, asynchronous ones in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[Any]
"""Weights or a gradient, float32 or float64, of any shape."""


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return the weighted mean of vectors, in their dtype.

    Sums are taken in the given order and in float64, where the product of a float32 and a count below 2²⁹ is exact; so the result
    does not depend on the processor either.

    Args:
        vectors: all of one shape and dtype.
        weights: of each vector, > 0 in total.
    Source: McMahan et al. 2017, AISTATS, "Communication-Efficient Learning of Deep Networks", algorithm 1.
    """
    assert len(vectors) == len(weights) >= 1
    total = np.zeros(vectors[0].shape, np.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        total += vector.astype(np.float64) * weight
    return np.asarray(total / sum(weights)).astype(vectors[0].dtype)


def mean_gradient(gradients: Sequence[Vector]) -> Vector:
    """Return the plain mean of the workers' gradients; their losses are already weighted by patches."""
    return weighted_mean(gradients, [1] * len(gradients))


def pulled(state: Vector | None, mean: Vector, *, weighting: float) -> Vector:
    """Return the server's weights after an arrival: `(w * S + mean) / (w + 1)`, or the mean where the server has none yet.

    Args:
        state: the server's weights S.
        mean: of the weights that have arrived.
        weighting: w, the weight of the server's own; 0 replaces them.
    Source: García Henao et al. 2020, DiagnoseNET, asynchronous training.
    """
    return mean if state is None else weighted_mean([state, mean], [weighting, 1])


def count_overfitting(
    counter: int, *, score: float, best_score: float, loss: float, best_loss: float
) -> int:  # fmt: skip
    """Return the early-stopping counter after a validation.

    It grows when the training loss is the lowest so far but the validation is not better, and is 0 again when the validation is
    at least as good as the best: a tie resets it. Otherwise it stays.

    Args:
        counter: before.
        score: of this validation; larger is better.
        best_score, best_loss: of the validations before.
        loss: training loss of the epoch.
    Source: the public code of DiagnoseNET, where the score is the negative validation loss; with a
    classification, `--best-by loss` compares it.
    """
    if score >= best_score:
        return 0
    return counter + (loss < best_loss)
