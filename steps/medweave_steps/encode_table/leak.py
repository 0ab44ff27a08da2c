"""The leak check: columns that alone predict the class."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.tables import EncodedColumn, TableEncoder
from medweave_core.contracts.volume import TABLE_PREFIX
from medweave_steps.metrics.classification import roc_auc

LEAK_AUC = 0.98
"""ROC-AUC of a single column from which on it is reported."""
LEAST_ROWS, MOST_ROWS = 10, 2_500
"""Rows of each class that the check needs, and that it takes."""
ROWS_OF_BIN, MOST_BINS = 10, 100
"""Rows of each bin of a numeric column, and its largest number of bins."""

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Leak(NamedTuple):
    """A column that alone predicts a class: the number of the class with the largest area, and its ROC-AUC."""

    target: int
    area: float


def leak_sample(rows: IntArray, targets: npt.NDArray[np.int16], *, seed: int) -> IntArray:
    """Return training rows for the check, ascending: at most `MOST_ROWS` of each class."""
    rng = np.random.default_rng((seed, MOST_ROWS))
    own = targets[rows]
    drawn = [rng.permutation(rows[own == number])[:MOST_ROWS] for number in np.unique(own)]
    return np.sort(np.concatenate(drawn))


def leaking_columns(
    features: Any, is_empty: BoolArray, targets: npt.NDArray[np.int16], encoder: TableEncoder
) -> dict[str, Leak]:
    """Return the columns with a ROC-AUC of at least `LEAK_AUC` for a class against the others, when a model sees nothing else.

    Each value of a category or binary column is a bin, so is each bucket of a hashed column, and so are its empty cells. A numeric
    column has bins between the quantiles of its values, and one for empty cells. The score of a row is the share of the class in
    its bin, counted on one half of the rows and applied to the other half, so that a share of few rows gives no area by chance.
    A numeric column has a second score, the value itself (empty: the mean) in both directions; the larger area counts.

    Args:
        features: scipy.sparse.csr_matrix [rows, features] of some training rows.
        is_empty: [rows, columns of the encoder], cells without a value.
        targets: class of each of these rows.
    Returns:
        Class and area by name of the column.
    """
    leaking: dict[str, Leak] = {}
    counts = np.bincount(targets)
    classes = [number for number, count in enumerate(counts) if LEAST_ROWS <= count <= len(targets) - LEAST_ROWS]
    truths = {number: (targets == number, _half_of_each_class(targets == number)) for number in classes}
    first = 0
    by_column = features.astype(np.float64).tocsc()
    for place, column in enumerate(encoder.columns):
        width = len(column.features)
        own = by_column[:, first : first + width]
        leaks = [
            Leak(number, _column_auc(column, own, is_empty[:, place], is_true, half))
            for number, (is_true, half) in truths.items()
        ]
        largest = max(leaks, key=lambda leak: leak.area, default=None)
        if largest is not None and largest.area >= LEAK_AUC:
            leaking[column.name] = largest
        first += width
    matrix = by_column[:, first:]
    for number, (is_true, _) in truths.items() if encoder.matrix_columns else ():
        shares = [matrix.T @ flags / flags.sum() for flags in (is_true, ~is_true)]
        areas_M = 0.5 + np.abs(shares[0] - shares[1]) / 2
        for place in np.flatnonzero(areas_M >= LEAK_AUC).tolist():
            leak = Leak(number, float(areas_M[place]))
            leaking[_matrix_name(place)] = max(leak, leaking.get(_matrix_name(place), leak), key=lambda one: one.area)
    return leaking


def _matrix_name(place: int) -> str:
    return f"{TABLE_PREFIX}{place} of the matrix"


def _half_of_each_class(is_true: BoolArray) -> BoolArray:
    """Return which rows are in the first half, drawn from the rows of the class and from the others."""
    rng, half = np.random.default_rng(0), np.zeros(len(is_true), np.bool_)
    for flags in (is_true, ~is_true):
        half[rng.permutation(np.flatnonzero(flags))[::2]] = True
    return half


def _column_auc(
    column: EncodedColumn, features: Any, is_empty: BoolArray, is_true: BoolArray, half: BoolArray
) -> float:
    if column.kind == "numeric":
        values = features.toarray().ravel()
        bins = _bins(values, is_empty)
        area = roc_auc(is_true, values)
        areas = [] if area is None else [area, 1 - area]
    else:
        bins = (features @ np.arange(1, len(column.features) + 1)).astype(np.int64)
        areas = []
    bins[is_empty] = bins.max() + 1
    halves = [_rate_auc(bins, is_true, fitted) or 0.0 for fitted in (half, ~half)]
    return max(*areas, sum(halves) / 2, 0.0)


def _bins(values: npt.NDArray[np.float64], is_empty: BoolArray) -> IntArray:
    """Return the bin of each value; bins have about as many rows as each other, and equal values are in one bin."""
    known = values[~is_empty]
    number = min(MOST_BINS, len(known) // ROWS_OF_BIN)
    edges = np.unique(np.quantile(known, np.arange(1, number) / number)) if number > 1 else np.zeros(0)
    return np.searchsorted(edges, values, side="right")


def _rate_auc(bins: IntArray, is_true: BoolArray, fitted: BoolArray) -> float | None:
    """Return the ROC-AUC on one half of the rows, for the shares of the class in each bin on the other half."""
    prior, number = float(is_true[fitted].mean()), int(bins.max()) + 1
    rows = np.bincount(bins[fitted], minlength=number)
    positives = np.bincount(bins[fitted & is_true], minlength=number)
    shares = (positives + prior) / (rows + 1)
    return roc_auc(is_true[~fitted], shares[bins[~fitted]])
