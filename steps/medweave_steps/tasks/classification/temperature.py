"""Calibration on the validation split: the temperature of the logits, and the thresholds of classes that do not exclude each other.

Suffix legend: N cases, C classes.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ComponentFilter, Postprocessing
from medweave_steps.metrics.classification import Predictions, f1_by_class, log_loss
from medweave_steps.tasks.classification.outputs import BoolArray, ClassTargets

BOUNDS = (0.25, 20.0)
"""Range of the temperature. Without error on the validation split the likelihood would push it towards 0."""
THRESHOLDS = (0.02, 0.05, *(step / 20 for step in range(2, 20)), 0.98)
_STEPS = 60
_GOLDEN = (math.sqrt(5) - 1) / 2

LogitArray = npt.NDArray[np.float64]


def predictions(
    logits_NC: LogitArray, truth_NC: BoolArray, targets: ClassTargets, postprocessing: Postprocessing
) -> Predictions:
    """Return the predictions of cases under one choice of postprocessing."""
    probability = targets.probabilities(logits_NC, temperature=postprocessing.temperature)
    return Predictions(
        truth_NC=truth_NC,
        decided_NC=targets.decided(probability, postprocessing),
        probability_NC=probability,
        is_multi_label=targets.is_multi_label,
    )


def fitted_temperature(logits_NC: LogitArray, truth_NC: BoolArray, targets: ClassTargets) -> float:
    """Return the temperature within `BOUNDS` with the smallest log loss, by golden-section search over its logarithm.

    The log loss is convex in the inverse of the temperature, so it has one minimum.

    Source: Guo et al. 2017, ICML, "On calibration of modern neural networks".
    """

    def loss_at(logarithm: float) -> float:
        plain = Postprocessing(temperature=math.exp(logarithm))
        loss = log_loss(predictions(logits_NC, truth_NC, targets, plain))
        assert loss is not None, "there is a validation case"
        return loss

    low, high = (math.log(bound) for bound in BOUNDS)
    for _ in range(_STEPS):
        lower, upper = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if loss_at(lower) <= loss_at(upper):
            high = upper
        else:
            low = lower
    middle = (low + high) / 2
    return round(math.exp(middle), 4) if loss_at(middle) < loss_at(0.0) else 1.0


def calibrated(logits_NC: LogitArray, truth_NC: BoolArray, targets: ClassTargets) -> Postprocessing:
    """Return the postprocessing that fits these cases: the temperature, and for multi-label the threshold of each class.

    The threshold of a class is the one with the best F1, of equal ones the one closest to one half; one half for a class that no
    case has.
    """
    chosen = Postprocessing(temperature=fitted_temperature(logits_NC, truth_NC, targets))
    if not targets.is_multi_label:
        return chosen
    tried = [
        dataclasses.replace(chosen, by_output=(ComponentFilter(threshold=threshold),) * len(targets.classes))
        for threshold in THRESHOLDS
    ]
    f1 = [f1_by_class(predictions(logits_NC, truth_NC, targets, one)) for one in tried]
    best = [_best([of_choice[c] for of_choice in f1], truth_NC[:, c]) for c in range(len(targets.classes))]
    return dataclasses.replace(chosen, by_output=tuple(ComponentFilter(threshold=threshold) for threshold in best))


def _best(f1: list[float | None], truth_N: BoolArray) -> float:
    if not truth_N.any():
        return 0.5
    places = range(len(THRESHOLDS))
    return THRESHOLDS[max(places, key=lambda place: (f1[place] or 0.0, -abs(THRESHOLDS[place] - 0.5)))]
