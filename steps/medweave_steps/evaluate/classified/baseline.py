"""The baselines of a classification: logistic regression on histograms of images or ECG, or on the columns of a table.

Suffix legend: N cases, F features, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.classification_evaluation import BaselineRule
from medweave_core.contracts.volume import are_signals
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.runtime.imports import require
from medweave_steps.tasks.classification.cases import check_classes_agree
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.tasks.classification.table_sampler import TableRows

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

COLOR_BINS, GRAY_BINS = 6, 64  # per channel: 216 bins of the three together, or 64 gray values or voltages
SIGNAL_MV = (-1.0, 2.0)
"""Range of the bins of an ECG, mV; values beyond count in the outer bins."""
PENALTY = 0.1  # of the squared weights, over the sum of the log losses
MOST_ROWS = 10_000
_MOST_ITERATIONS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBaseline:
    """A fitted baseline.

    Attributes:
        weights_FC: of the features, the last row is the constant.
        targets: classes that it predicts.
        training_cases: cases that it was fitted on.
        rule: what it sees.
    """

    weights_FC: FloatArray
    targets: ClassTargets
    training_cases: int
    rule: BaselineRule

    @property
    def bins(self) -> int:
        """Return the number of histogram bins, or of features of a table."""
        return len(self.weights_FC) - 1

    def decided(self, features_NF: npt.NDArray[np.floating]) -> BoolArray:
        """Return the predicted classes, bool [N, C]: the most probable one, or those with a probability of one half or more."""
        probability_NC = self.targets.probabilities(_with_constant(features_NF) @ self.weights_FC)
        if self.targets.is_multi_label:
            return np.asarray(probability_NC >= 0.5, np.bool_)
        return np.asarray(probability_NC.argmax(axis=1)[:, None] == np.arange(probability_NC.shape[1]), np.bool_)


def fit_baseline(training_set: PreparedFolder, targets: ClassTargets) -> FittedBaseline:
    """Fit the baseline on the training cases with known classes.

    Raises:
        UserInputError: the classes of the training set are not those of the model, or no training case has known classes.
    """
    check_classes_agree(training_set.cohort, targets, of="the model")
    cases = [case for case in training_set.cases("train") if case.case.classes is not None]
    if not cases:
        raise UserInputError(
            "the baseline has no training case.",
            seen=f"{len(training_set.cohort.cases)} cases in --training-set, none of the training split with known classes",
            expected="the training set that preprocess wrote for this cohort",
            do="give prepared/training_set with --training-set, or leave the option out",
        )
    truth_NC = np.array([targets.truth_C(case.case) for case in cases])
    rule: BaselineRule = "amplitude histogram" if are_signals(training_set.cohort.channels) else "color histogram"
    weights = _fitted(_with_constant(histograms(cases, rule)), truth_NC, targets)
    return FittedBaseline(weights_FC=weights, targets=targets, training_cases=len(cases), rule=rule)


def fit_table_baseline(training_set: PreparedFolder, targets: ClassTargets, *, seed: int) -> FittedBaseline:
    """Fit the baseline on at most `MOST_ROWS` training rows, drawn at random.

    Raises:
        UserInputError: the classes of the training set are not those of the model.
    """
    check_classes_agree(training_set.cohort, targets, of="the model")
    rows = TableRows(training_set.cases("train"), num_features=len(training_set.cohort.channels))
    drawn = np.sort(np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS])
    truth_NC = rows.targets[drawn][:, None] == np.arange(len(targets.classes))
    weights = _fitted(_with_constant(rows.dense(drawn)), truth_NC, targets)
    return FittedBaseline(weights_FC=weights, targets=targets, training_cases=len(drawn), rule="logistic regression")


def histogram(image_CIJK: npt.NDArray[np.floating], value_range: tuple[float, float] = (0.0, 1.0)) -> FloatArray:
    """Return the square roots of the shares of values in the bins of the joint histogram of the channels, float64 [bins].

    Args:
        image_CIJK: one channel or three colors.
        value_range: of the bins; values beyond count in the outer ones.
    """
    low, high = value_range
    channels = len(image_CIJK)
    bins = COLOR_BINS if channels > 1 else GRAY_BINS
    places = np.clip(
        (np.asarray(image_CIJK, np.float64).reshape(channels, -1) - low) / (high - low) * bins, 0, bins - 1
    ).astype(np.int64)
    joint = np.ravel_multi_index(tuple(places), (bins,) * channels)
    return np.asarray(np.sqrt(np.bincount(joint, minlength=bins**channels) / joint.size), np.float64)


def histograms(cases: Sequence[CaseFolder], rule: BaselineRule) -> FloatArray:
    """Return the histogram of each case, float64 [N, bins]."""
    value_range = SIGNAL_MV if rule == "amplitude histogram" else (0.0, 1.0)
    return np.stack([histogram(case.volume_CIJK(), value_range) for case in cases])


def _with_constant(features_NF: npt.NDArray[np.floating]) -> FloatArray:
    return np.concatenate([features_NF, np.ones((len(features_NF), 1))], axis=1, dtype=np.float64)


def _fitted(features_NF: FloatArray, truth_NC: BoolArray, targets: ClassTargets) -> FloatArray:
    """Return the weights with the smallest log loss plus penalty: a convex function, so the start does not matter."""
    optimize = require("scipy.optimize", extra="evaluate")
    shape = (features_NF.shape[1], truth_NC.shape[1])

    def loss_and_gradient(flat: FloatArray) -> tuple[float, FloatArray]:
        weights_FC = flat.reshape(shape)
        logits_NC = features_NF @ weights_FC
        # Softplus and log-sum-exp do not overflow.
        normalizer = np.logaddexp(0, logits_NC) if targets.is_multi_label else _log_sum_exp(logits_NC)
        loss = float(normalizer.sum() - logits_NC[truth_NC].sum())
        penalized = weights_FC[:-1]
        gradient = features_NF.T @ (targets.probabilities(logits_NC) - truth_NC)
        gradient[:-1] += PENALTY * penalized
        return loss + PENALTY / 2 * float((penalized**2).sum()), gradient.ravel()

    result = optimize.minimize(
        loss_and_gradient, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _MOST_ITERATIONS}
    )
    return np.asarray(result.x, np.float64).reshape(shape)


def _log_sum_exp(logits_NC: FloatArray) -> FloatArray:
    highest = logits_NC.max(axis=1)
    return np.asarray(highest + np.log(np.exp(logits_NC - highest[:, None]).sum(axis=1)), np.float64)
