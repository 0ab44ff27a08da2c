"""Classification metrics: equal to scikit-learn's on random input; None where a figure is not defined."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import calibration, metrics

from medweave_steps.metrics import classification as ours
from medweave_steps.metrics.bootstrap import confidence_interval
from medweave_steps.metrics.classification import METRICS, Predictions

CLOSE = 1e-6


@st.composite
def predictions(draw: st.DrawFn, *, is_multi_label: bool) -> Predictions:
    """Random cases; of few levels scores are tied, and classes are often absent from truth or predictions."""
    num_cases, num_classes = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    levels = draw(st.sampled_from([3, 10, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(0, levels + 1, (num_cases, num_classes)) / levels
    occurring = draw(st.integers(1, num_classes))
    if is_multi_label:
        truth = rng.random((num_cases, num_classes)) < rng.random(num_classes)
        truth[:, occurring:] = False
        return Predictions(truth_NC=truth, decided_NC=scores >= 0.5, probability_NC=scores, is_multi_label=True)
    scores = (scores + 0.01) / (scores + 0.01).sum(axis=1, keepdims=True)
    classes = np.eye(num_classes, dtype=bool)
    truth = classes[rng.integers(0, occurring, num_cases)]
    return Predictions(
        truth_NC=truth, decided_NC=classes[scores.argmax(axis=1)], probability_NC=scores, is_multi_label=False
    )


def targets(of: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Truth and predictions as scikit-learn takes them."""
    if of.is_multi_label:
        return of.truth_NC.astype(int), of.decided_NC.astype(int)
    return of.truth_NC.argmax(axis=1), of.decided_NC.argmax(axis=1)


def equal(seen: float | None, expected: float) -> bool:
    """Return whether two figures are equal; an undefined one of scikit-learn is NaN."""
    return seen is None if math.isnan(expected) else seen is not None and abs(seen - expected) <= CLOSE


BOTH = pytest.mark.parametrize("is_multi_label", [False, True], ids=["exclusive", "multi-label"])
MANY = settings(max_examples=60, deadline=None)


@BOTH
@MANY
@given(data=st.data())
def test_accuracy_and_f1_are_those_of_scikit_learn(is_multi_label: bool, data: st.DataObject) -> None:
    drawn = data.draw(predictions(is_multi_label=is_multi_label))
    truth, decided = targets(drawn)
    options = {"labels": range(drawn.truth_NC.shape[1]), "zero_division": np.nan}
    assert equal(ours.accuracy(drawn), metrics.accuracy_score(truth, decided))
    by_class = metrics.f1_score(truth, decided, average=None, **options)
    assert all(map(equal, ours.f1_by_class(drawn), by_class))
    assert equal(ours.macro_f1(drawn), metrics.f1_score(truth, decided, average="macro", **options))
    if drawn.truth_NC.any():
        assert equal(ours.weighted_f1(drawn), metrics.f1_score(truth, decided, average="weighted", **options))
    recalls = metrics.recall_score(truth, decided, average=None, **options)
    assert all(map(equal, ours.sensitivity_by_class(drawn), recalls))


@MANY
@given(drawn=predictions(is_multi_label=False))
def test_balanced_accuracy_and_confusion_of_exclusive_classes_are_those_of_scikit_learn(drawn: Predictions) -> None:
    truth, decided = targets(drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a predicted class that does not occur
        assert equal(ours.balanced_accuracy(drawn), metrics.balanced_accuracy_score(truth, decided))
    classes = list(range(drawn.truth_NC.shape[1]))
    assert (ours.confusion_matrix(drawn) == metrics.confusion_matrix(truth, decided, labels=classes)).all()


@MANY
@given(drawn=predictions(is_multi_label=True))
def test_balanced_accuracy_and_confusion_of_several_classes_are_those_of_scikit_learn(drawn: Predictions) -> None:
    truth, decided = targets(drawn)
    assert (ours.confusion_matrix(drawn) == metrics.multilabel_confusion_matrix(truth, decided)).all()
    of_classes = [
        metrics.balanced_accuracy_score(true, seen)
        for true, seen in zip(truth.T, decided.T, strict=True)
        if 0 < true.sum() < len(true)
    ]
    assert equal(ours.balanced_accuracy(drawn), float(np.mean(of_classes)) if of_classes else math.nan)


@BOTH
@MANY
@given(data=st.data())
def test_areas_under_the_curves_are_those_of_scikit_learn(is_multi_label: bool, data: st.DataObject) -> None:
    drawn = data.draw(predictions(is_multi_label=is_multi_label))
    for is_true, score in zip(drawn.truth_NC.T, drawn.probability_NC.T, strict=True):
        area, precision = ours.roc_auc(is_true, score), ours.average_precision(is_true, score)
        if 0 < is_true.sum() < len(is_true):
            assert equal(area, metrics.roc_auc_score(is_true, score))
        else:
            assert area is None
        assert (
            (precision is None)
            if not is_true.any()
            else equal(precision, metrics.average_precision_score(is_true, score))
        )


@BOTH
@MANY
@given(data=st.data())
def test_log_loss_is_that_of_scikit_learn(is_multi_label: bool, data: st.DataObject) -> None:
    drawn = data.draw(predictions(is_multi_label=is_multi_label))
    if not is_multi_label:
        truth, _ = targets(drawn)
        expected = metrics.log_loss(truth, drawn.probability_NC, labels=range(drawn.truth_NC.shape[1]))
    else:
        pairs = zip(drawn.truth_NC.T, drawn.probability_NC.T, strict=True)
        expected = float(np.mean([metrics.log_loss(true, score, labels=[0, 1]) for true, score in pairs]))
    assert equal(ours.log_loss(drawn), expected)


@BOTH
@MANY
@given(data=st.data())
def test_calibration_error_is_that_of_scikit_learns_curve(is_multi_label: bool, data: st.DataObject) -> None:
    drawn = data.draw(predictions(is_multi_label=is_multi_label))
    if is_multi_label:
        pairs = list(zip(drawn.truth_NC.T, drawn.probability_NC.T, strict=True))
    else:
        largest = drawn.probability_NC.argmax(axis=1)
        rows = np.arange(len(largest))
        pairs = [(drawn.truth_NC[rows, largest], drawn.probability_NC[rows, largest])]
    errors = []
    for is_true, score in pairs:
        share, mean = calibration.calibration_curve(is_true.astype(int), score, n_bins=ours.NUM_BINS, pos_label=1)
        place = np.searchsorted(np.linspace(0, 1, ours.NUM_BINS + 1)[1:-1], score)
        counts = np.unique(place, return_counts=True)[1]
        errors.append(float((np.abs(share - mean) * counts).sum()) / len(score))
    assert equal(ours.expected_calibration_error(drawn), float(np.mean(errors)))


def exclusive(truth: list[int], decided: list[int], num_classes: int) -> Predictions:
    """Predictions with full confidence."""
    classes = np.eye(num_classes, dtype=bool)
    return Predictions(
        truth_NC=classes[truth],
        decided_NC=classes[decided],
        probability_NC=classes[decided] * 1.0,
        is_multi_label=False,
    )


def test_figures_of_a_calculation_by_head() -> None:
    # Class 0: 2 of 3 found, nothing else taken for it. Class 1: 1 of 1 found, and one case of class 0. Class 2 does not occur.
    seen = exclusive([0, 0, 0, 1], [0, 0, 1, 1], 3)
    assert ours.f1_by_class(seen) == [0.8, pytest.approx(2 / 3), None]
    assert ours.accuracy(seen) == 0.75
    assert ours.balanced_accuracy(seen) == pytest.approx((2 / 3 + 1) / 2)
    assert ours.expected_calibration_error(seen) == pytest.approx(0.25)
    assert ours.confusion_matrix(seen).tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_figures_of_no_case_are_undefined() -> None:
    for is_multi_label in (False, True):
        nothing = np.zeros((0, 3), bool)
        empty = Predictions(
            truth_NC=nothing, decided_NC=nothing, probability_NC=nothing * 1.0, is_multi_label=is_multi_label
        )
        assert {name: metric(empty) for name, metric in METRICS.items()} == dict.fromkeys(METRICS)


def test_an_interval_is_over_patients() -> None:
    seen = exclusive([0, 1] * 20, [0, 1] * 10 + [1, 0] * 10, 2)

    def statistic(rows: np.ndarray) -> float:
        value = ours.accuracy(seen.with_rows(rows))
        assert value is not None
        return value

    by_case = confidence_interval(seen.rows, statistic, seed=0, patients=list(map(str, range(40))))
    of_two = confidence_interval(seen.rows, statistic, seed=0, patients=["a"] * 20 + ["b"] * 20)
    assert of_two == (0.0, 1.0)
    assert 0.3 < by_case[0] < 0.5
    assert np.isnan(confidence_interval(seen.rows, statistic, seed=0, patients=["a"] * 40)).all()
    never = exclusive([0, 0], [0, 0], 2)
    assert METRICS["macro_roc_auc"](never.with_rows(never.rows)) is None
