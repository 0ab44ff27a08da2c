"""Metrics of classifications, for exclusive classes and for any number of classes per case (multi-label). Only numpy.

A figure that is not defined is None: the F1 of a class that is neither true nor predicted, a ROC curve without positives or without
negatives, a mean over no class. Means leave it out.

Suffix legend: N cases, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

NUM_BINS = 15
"""Bins of the expected calibration error; Guo et al. 2017."""
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """The truth and the predictions of some cases.

    Attributes:
        truth_NC: bool, the classes of each case; exactly one where classes exclude each other.
        decided_NC: bool, the predicted classes, likewise.
        probability_NC: float64 in [0, 1]; of exclusive classes the sum of each row is 1.
        is_multi_label: a case has any number of classes.
    """

    truth_NC: BoolArray
    decided_NC: BoolArray
    probability_NC: FloatArray
    is_multi_label: bool

    @property
    def rows(self) -> FloatArray:
        """Return one row for each case, for `bootstrap.confidence_interval`."""
        return np.concatenate([self.truth_NC, self.decided_NC, self.probability_NC], axis=1, dtype=np.float64)

    def with_rows(self, rows: FloatArray) -> Predictions:
        """Return the predictions of other cases, as `rows` has them."""
        truth, decided, probability = np.split(rows, 3, axis=1)
        return Predictions(
            truth_NC=truth > 0, decided_NC=decided > 0, probability_NC=probability, is_multi_label=self.is_multi_label
        )


Metric = Callable[[Predictions], "float | None"]


def accuracy(predictions: Predictions) -> float | None:
    """Return the share of cases whose predicted classes are exactly the true ones; multi-label, this is the subset accuracy."""
    if not len(predictions.truth_NC):
        return None
    return float((predictions.truth_NC == predictions.decided_NC).all(axis=1).mean())


def sensitivity_by_class(predictions: Predictions) -> list[float | None]:
    """Return for each class the share of its cases for which it was predicted (recall)."""
    truth, decided = predictions.truth_NC, predictions.decided_NC
    return _ratios((truth & decided).sum(axis=0), truth.sum(axis=0))


def specificity_by_class(predictions: Predictions) -> list[float | None]:
    """Return for each class the share of the other cases for which it was not predicted."""
    truth, decided = predictions.truth_NC, predictions.decided_NC
    return _ratios((~truth & ~decided).sum(axis=0), (~truth).sum(axis=0))


def balanced_accuracy(predictions: Predictions) -> float | None:
    """Return the mean sensitivity of the classes.

    Multi-label, it is the mean over the classes of the mean of sensitivity and specificity; a class that all cases have, or none,
    has no such mean.

    Source: Brodersen et al. 2010, ICPR, "The balanced accuracy and its posterior distribution".
    """
    sensitivities = sensitivity_by_class(predictions)
    if not predictions.is_multi_label:
        return _mean(sensitivities)
    pairs = zip(sensitivities, specificity_by_class(predictions), strict=True)
    return _mean([None if a is None or b is None else (a + b) / 2 for a, b in pairs])


def f1_by_class(predictions: Predictions) -> list[float | None]:
    """Return the F1 of each class: twice the cases with it in truth and prediction, over the cases with it in either, summed."""
    truth, decided = predictions.truth_NC, predictions.decided_NC
    return _ratios(2 * (truth & decided).sum(axis=0), truth.sum(axis=0) + decided.sum(axis=0))


def macro_f1(predictions: Predictions, scored: Sequence[int] | None = None) -> float | None:
    """Return the mean F1 of the classes, or of those at the places of `scored`."""
    values = f1_by_class(predictions)
    return _mean(values if scored is None else [values[place] for place in scored])


def weighted_f1(predictions: Predictions) -> float | None:
    """Return the mean F1 of the classes, each weighted by its number of true cases; None without any."""
    support = predictions.truth_NC.sum(axis=0)
    weighted = [
        f1 * int(number) for f1, number in zip(f1_by_class(predictions), support, strict=True) if f1 is not None
    ]
    total = int(support.sum())
    return float(sum(weighted)) / total if total else None


def micro_f1(predictions: Predictions) -> float | None:
    """Return the F1 over all decisions: as of one class, with the counts of all classes summed."""
    truth, decided = predictions.truth_NC, predictions.decided_NC
    (value,) = _ratios(np.array([2 * (truth & decided).sum()]), np.array([truth.sum() + decided.sum()]))
    return value


def roc_auc(is_true_N: BoolArray, score_N: FloatArray) -> float | None:
    """Return the area under the ROC curve of one class: the chance that a positive case has a larger score than a negative one.

    Equal scores count one half. None without positives or without negatives.

    Source: Hanley and McNeil 1982, Radiology 143(1):29-36.
    """
    num_positive = int(is_true_N.sum())
    num_negative = len(is_true_N) - num_positive
    if not num_positive or not num_negative:
        return None
    _, place, counts = np.unique(score_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = (last - counts + 1 + last) / 2
    ranks = float(mean_rank[place][is_true_N].sum())
    return (ranks - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def average_precision(is_true_N: BoolArray, score_N: FloatArray) -> float | None:
    """Return the area under the precision-recall curve of one class as average precision, without interpolation.

    It is the sum over the thresholds of the precision times the gain in recall. None without positives.

    Source: Davis and Goadrich 2006, ICML, on why no line is drawn between the points.
    """
    num_positive = int(is_true_N.sum())
    if not num_positive:
        return None
    order = np.argsort(-score_N, kind="stable")
    found, scores = np.cumsum(is_true_N[order]), score_N[order]
    is_last = np.append(scores[1:] != scores[:-1], True)  # of cases with equal scores: one threshold takes them all
    at = np.flatnonzero(is_last)
    precision = found[at] / (at + 1)
    gain = np.diff(found[at], prepend=0) / num_positive
    return float((precision * gain).sum())


def expected_calibration_error(predictions: Predictions, *, num_bins: int = NUM_BINS) -> float | None:
    """Return the expected calibration error (ECE): by how much probabilities differ from frequencies, in [0, 1].

    The cases are sorted into bins of equal width by the probability of the predicted class, the largest one. The result is the
    mean over the bins, weighted by their cases, of the difference between the share of correct cases and the mean probability.
    A value on the border of two bins belongs to the lower one. Multi-label, it is the mean over the classes of the same figure
    for the probability of the class and the share of cases that have it.

    Source: Naeini et al. 2015, AAAI, "Obtaining well calibrated probabilities using Bayesian binning"; Guo et al. 2017, ICML, "On
    calibration of modern neural networks", with 15 bins; Kull et al. 2019, NeurIPS, for the mean over the classes.
    """
    probability, truth = predictions.probability_NC, predictions.truth_NC
    if not len(truth):
        return None
    if not predictions.is_multi_label:
        return _calibration_error(*most_probable(predictions), num_bins)
    errors = [_calibration_error(probability[:, c], truth[:, c], num_bins) for c in range(truth.shape[1])]
    return _mean(errors)


def most_probable(predictions: Predictions) -> tuple[FloatArray, BoolArray]:
    """Return the probability of the most probable class of each case, and whether it is the true one; for exclusive classes."""
    largest = predictions.probability_NC.argmax(axis=1)[:, None]
    truth = np.take_along_axis(predictions.truth_NC, largest, axis=1)
    return np.take_along_axis(predictions.probability_NC, largest, axis=1)[:, 0], truth[:, 0]


def bins_of(probability_N: FloatArray, num_bins: int = NUM_BINS) -> IntArray:
    """Return the bin of each probability, from 0; a value on the border of two bins belongs to the lower one."""
    inner = np.linspace(0, 1, num_bins + 1)[1:-1]
    return np.searchsorted(inner, probability_N, side="left")


def log_loss(predictions: Predictions) -> float | None:
    """Return the mean negative log-likelihood of the truth, in nats; multi-label, the mean over cases and classes.

    Probabilities are kept one rounding error away from 0 and 1, so that the result is finite.
    """
    truth = predictions.truth_NC
    if not truth.size:
        return None
    probability = np.clip(predictions.probability_NC, _EPSILON, 1 - _EPSILON)
    if not predictions.is_multi_label:
        return float(-np.log(probability)[truth].sum()) / len(truth)
    return float(-np.where(truth, np.log(probability), np.log1p(-probability)).mean())


def confusion_matrix(predictions: Predictions) -> IntArray:
    """Return the number of cases by class: int64 [C, C], true classes along the first axis, predicted ones along the second.

    Multi-label, it is int64 [C, 2, 2]: for each class the cases without and with it, predicted without and with it.
    """
    truth, decided = predictions.truth_NC.astype(np.int64), predictions.decided_NC.astype(np.int64)
    if not predictions.is_multi_label:
        return truth.T @ decided
    true_NC2, seen_NC2 = (np.stack([1 - one, one], axis=2) for one in (truth, decided))
    counts: IntArray = np.einsum("nct,ncp->ctp", true_NC2, seen_NC2)
    return counts


METRICS: Mapping[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "weighted_f1": weighted_f1,
    "micro_f1": micro_f1,
    "macro_roc_auc": lambda predictions: _mean(areas_by_class(predictions, roc_auc)),
    "macro_average_precision": lambda predictions: _mean(areas_by_class(predictions, average_precision)),
    "expected_calibration_error": expected_calibration_error,
    "log_loss": log_loss,
}
"""The figures over all classes, by name."""


def areas_by_class(
    predictions: Predictions, area: Callable[[BoolArray, FloatArray], float | None]
) -> list[float | None]:
    """Return `roc_auc` or `average_precision` of each class against the cases without it."""
    pairs = zip(predictions.truth_NC.T, predictions.probability_NC.T, strict=True)
    return [area(is_true, score) for is_true, score in pairs]


def _calibration_error(probability_N: FloatArray, is_correct_N: BoolArray, num_bins: int) -> float:
    difference = np.bincount(bins_of(probability_N, num_bins), probability_N - is_correct_N, minlength=num_bins)
    return float(np.abs(difference).sum()) / len(probability_N)


def _ratios(parts: IntArray, wholes: IntArray) -> list[float | None]:
    return [int(part) / int(whole) if whole else None for part, whole in zip(parts, wholes, strict=True)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
