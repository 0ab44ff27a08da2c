"""The leak check: columns that alone predict the class."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.tables import EncodedColumn, TableEncoder
from medweave_core.contracts.volume import TABLE_PREFIX
from medweave_steps.metrics.classification import roc_auc

LEAK_AUC = 0.98
"""ROC-AUC of a single column from which on it is reported."""
LEAST_ROWS, MOST_ROWS = 10, 2_500
"""Rows of each class that the check needs, and that it takes."""


def leak_sample(rows: npt.NDArray[np.int64], targets: npt.NDArray[np.int16], *, seed: int) -> npt.NDArray[np.int64]:
    """Return training rows for the check, ascending: at most `MOST_ROWS` of each class."""
    rng = np.random.default_rng((seed, MOST_ROWS))
    own = targets[rows]
    drawn = [rng.permutation(rows[own == number])[:MOST_ROWS] for number in np.unique(own)]
    return np.sort(np.concatenate(drawn))


def leaking_columns(features: Any, targets: npt.NDArray[np.int16], encoder: TableEncoder) -> dict[str, float]:
    """Return the columns with a ROC-AUC of at least `LEAK_AUC` for a class against the others, when a model sees nothing else.

    The value itself is the score of a numeric or binary column. That of the others is the share of the class among rows with the
    same value, counted on one half of the rows and applied to the other half.

    Args:
        features: scipy.sparse.csr_matrix [rows, features] of some training rows.
        targets: class of each of these rows.
    Returns:
        ROC-AUC by name of the column.
    """
    leaking: dict[str, float] = {}
    counts = np.bincount(targets)
    classes = [number for number, count in enumerate(counts) if LEAST_ROWS <= count <= len(targets) - LEAST_ROWS]
    first = 0
    by_column = features.tocsc()
    for column in encoder.columns:
        width = len(column.features)
        own = by_column[:, first : first + width]
        areas = [_column_auc(column, own, targets == number) for number in classes] if width else []
        if max(areas, default=0.0) >= LEAK_AUC:
            leaking[column.name] = max(areas)
        first += width
    matrix = by_column[:, first:]
    for number in classes if encoder.matrix_columns else ():
        is_true = targets == number
        shares = [np.asarray(matrix[flags].mean(axis=0)).ravel() for flags in (is_true, ~is_true)]
        areas_M = 0.5 + np.abs(shares[0] - shares[1]) / 2
        leaking |= {_matrix_name(int(place)): float(areas_M[place]) for place in np.flatnonzero(areas_M >= LEAK_AUC)}
    return leaking


def _matrix_name(place: int) -> str:
    return f"{TABLE_PREFIX}{place} of the matrix"


def _column_auc(column: EncodedColumn, features: Any, is_true: npt.NDArray[np.bool_]) -> float:
    if column.kind in ("numeric", "binary"):
        areas = [roc_auc(is_true, np.asarray(features.todense(), np.float64).ravel())]
    else:
        halves = np.arange(len(is_true)) % 2 == 0
        areas = [_rate_auc(features.tocsr(), is_true, fitted) for fitted in (halves, ~halves)]
    known = [max(area, 1 - area) for area in areas if area is not None]
    return sum(known) / len(known) if known else 0.0


def _rate_auc(features: Any, is_true: npt.NDArray[np.bool_], fitted: npt.NDArray[np.bool_]) -> float | None:
    """Return the ROC-AUC on one half of the rows, for the shares of the class on the other half."""
    prior = float(is_true[fitted].mean())
    positives = np.asarray(features[fitted].T @ is_true[fitted].astype(np.float64)).ravel()
    rows = np.asarray(features[fitted].sum(axis=0)).ravel()
    shares = (positives + prior) / (rows + 1)
    scores = np.asarray(features[~fitted] @ (shares - prior)).ravel() + prior  # rows without a value have the prior
    return roc_auc(is_true[~fitted], scores)
