"""The reliability diagram: how often predictions of a probability are right, before and after the temperature.

Suffix legend: N predictions, C classes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.classification_evaluation import ClassificationEvaluation
from medweave_steps.metrics.classification import (
    NUM_BINS,
    Predictions,
    bins_of,
    expected_calibration_error,
    most_probable,
)
from medweave_steps.runtime.svg import FIRST, INK, SECOND, SOFT, Chart, svg_of
from medweave_steps.tasks.classification.outputs import ClassTargets

FloatArray = npt.NDArray[np.float64]

_EPSILON = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """The bins that hold predictions, from the lowest probability to the highest.

    Attributes:
        probability: mean probability of each bin.
        frequency: share of the bin's predictions that are right.
        counts: predictions of each bin.
    """

    probability: FloatArray
    frequency: FloatArray
    counts: npt.NDArray[np.int64]


def predictions_of(evaluation: ClassificationEvaluation) -> Predictions:
    """Return truth and calibrated probabilities of the evaluated cases."""
    names = [one.name for one in evaluation.classes]
    cases = evaluation.per_case
    shape = (len(cases), len(names))
    return Predictions(
        truth_NC=np.array([np.isin(names, case.classes) for case in cases], np.bool_).reshape(shape),
        decided_NC=np.array([np.isin(names, case.predicted) for case in cases], np.bool_).reshape(shape),
        probability_NC=np.array([[case.probabilities[name] for name in names] for case in cases], np.float64).reshape(
            shape
        ),
        is_multi_label=evaluation.is_multi_label,
    )


def without_temperature(seen: Predictions, temperature: float) -> Predictions:
    """Return predictions with the probabilities that the network gave before its logits were divided by the temperature.

    Softmax and sigmoid are inverted up to a constant, which does not change the probabilities.
    """
    probability = np.clip(seen.probability_NC, _EPSILON, 1 - _EPSILON)
    logits = np.log(probability) - (np.log1p(-probability) if seen.is_multi_label else 0)
    plain = ClassTargets(classes=(), is_multi_label=seen.is_multi_label).probabilities(logits * temperature)
    return dataclasses.replace(seen, probability_NC=plain)


def reliability(seen: Predictions) -> Reliability:
    """Return the bins of the expected calibration error.

    Of exclusive classes the most probable one of each case counts; multi-label, the probability of each class of each case.
    """
    if seen.is_multi_label:
        probability_N, is_right_N = seen.probability_NC.ravel(), seen.truth_NC.ravel()
    else:
        probability_N, is_right_N = most_probable(seen)
    place = bins_of(probability_N)
    counts = np.bincount(place, minlength=NUM_BINS)
    used = counts > 0
    sums = [np.bincount(place, values, minlength=NUM_BINS)[used] for values in (probability_N, is_right_N)]
    return Reliability(probability=sums[0] / counts[used], frequency=sums[1] / counts[used], counts=counts[used])


def reliability_chart(evaluation: ClassificationEvaluation, temperature: float) -> Chart:
    """Draw the share of right predictions over their probability, before and after the temperature."""
    after = predictions_of(evaluation)
    before = without_temperature(after, temperature)
    bins = {"before": reliability(before), "after": reliability(after)}
    errors = {"before": expected_calibration_error(before), "after": expected_calibration_error(after)}
    largest = max(int(one.counts.max()) for one in bins.values())

    def draw(axes: Any) -> None:
        axes.plot((0, 1), (0, 1), color=SOFT, linewidth=1, linestyle=":", label="perfect calibration")
        styles = {"after": (FIRST, "o"), "before": (SECOND, "x")}
        for name, (color, marker) in styles.items():
            one = bins[name]
            sizes = 12 + 80 * one.counts / largest
            label = f"{name} the temperature (error {errors[name]:.3f})"
            axes.scatter(
                one.probability,
                one.frequency,
                s=sizes,
                color=color,
                marker=marker,
                linewidths=1.4,
                label=label,
                zorder=3,
            )
        axes.set(xlabel="predicted probability", ylabel="share that is right", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.legend(loc="lower right", frameon=False, labelcolor=INK)

    alt = (
        f"Reliability diagram. The expected calibration error is {errors['before']:.3f} before and "
        f"{errors['after']:.3f} after division of the logits by the temperature {temperature:g}."
    )
    what = "each class of each case" if evaluation.is_multi_label else "the predicted class of each case"
    caption = (
        f"Reliability of the probability of {what}, in {NUM_BINS} bins; larger marks stand for more predictions. The "
        f"temperature {temperature:g} was fitted on the validation split."
    )
    return Chart(svg=svg_of(draw, "reliability"), alt=alt, caption=caption)
