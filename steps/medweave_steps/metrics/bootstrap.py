"""Confidence intervals: percentile bootstrap over patients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 2000
LEVEL = 0.95

Statistic = Callable[[npt.NDArray[np.float64]], float]


def confidence_interval(
    values: npt.ArrayLike,
    statistic: Statistic,
    *,
    seed: int,
    patients: Sequence[str] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Return the interval of a statistic under resampling of patients with replacement.

    Lesions of one patient, and scans of one patient, are not independent; so whole patients are drawn, and a pooled figure
    (lesions hit over lesions) is computed from all rows of the drawn patients.

    Args:
        values: one row per case, shape (cases,) or (cases, columns), such as (lesions hit, lesions).
        statistic: takes rows of that shape and gives one number; NaN where it is not defined (no lesion was drawn).
        seed: seed of the draw; equal seeds draw equal patients, whatever the statistic.
        patients: the patient of each row; None where each row is another patient.
        num_resamples: draws.
        level: share of the draws that the interval holds.
    Returns:
        lower and upper bound. NaN, NaN for fewer than two patients, or where no draw gave a number. Draws without a number
        are left out. A statistic at its limit in every case (all lesions found) gives an interval without width: this
        method cannot see beyond the patients it was given.
    Source: Efron, Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentile interval), over clusters.
    """
    (interval,) = confidence_intervals(
        values,
        lambda rows: [statistic(rows)],
        seed=seed,
        patients=patients,
        num_resamples=num_resamples,
        level=level,
    )
    return interval


def confidence_intervals(
    values: npt.ArrayLike,
    statistics: Callable[[npt.NDArray[np.float64]], Sequence[float]],
    *,
    seed: int,
    patients: Sequence[str] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    level: float = LEVEL,
) -> list[tuple[float, float]]:
    """Return the intervals of several statistics on the same draws, each as `confidence_interval` has it.

    Args:
        statistics: takes rows and gives one number for each statistic, always as many.
    """
    rows = np.asarray(values, dtype=np.float64)
    names = list(patients) if patients is not None else [str(row) for row in range(len(rows))]
    members: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        members.setdefault(name, []).append(row)
    groups = [np.asarray(group) for group in members.values()]
    if len(groups) < 2:
        return [(math.nan, math.nan)] * len(statistics(rows))
    draws = np.random.default_rng(seed).integers(0, len(groups), size=(num_resamples, len(groups)))
    results = np.array([statistics(rows[np.concatenate([groups[g] for g in draw])]) for draw in draws])
    return [_percentiles(column, level) for column in results.T]


def _percentiles(results: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    results = results[~np.isnan(results)]
    if not len(results):
        return math.nan, math.nan
    tail = (1 - level) / 2
    low, high = np.quantile(results, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def mean(rows: npt.NDArray[np.float64]) -> float:
    """Return the mean of the rows that are numbers; NaN without any."""
    numbers = rows[~np.isnan(rows)]
    return float(numbers.mean()) if len(numbers) else math.nan


def median(rows: npt.NDArray[np.float64]) -> float:
    """Return the median of the rows that are numbers, including infinite ones; NaN without any."""
    numbers = np.sort(rows[~np.isnan(rows)])
    if not len(numbers):
        return math.nan
    low, high = numbers[(len(numbers) - 1) // 2], numbers[len(numbers) // 2]
    return float(low if low == high else (low + high) / 2)


def ratio(rows: npt.NDArray[np.float64]) -> float:
    """Return the sum of the first column over the sum of the second; NaN where the second is 0."""
    part, whole = rows.sum(axis=0)
    return float(part / whole) if whole else math.nan
