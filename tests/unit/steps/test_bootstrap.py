"""Bootstrap intervals: seeded, over patients, NaN where they are not defined."""

from __future__ import annotations

import math

import numpy as np
import pytest

from medweave_steps.metrics.bootstrap import confidence_interval, mean, median, ratio


def test_equal_seeds_give_equal_intervals_and_others_do_not() -> None:
    values = np.random.default_rng(0).random(30)
    first = confidence_interval(values, mean, seed=1)
    assert first == confidence_interval(values, mean, seed=1)
    assert first != confidence_interval(values, mean, seed=2)


def test_interval_of_a_mean_is_close_to_the_normal_one() -> None:
    values = np.random.default_rng(3).normal(0.8, 0.1, size=200)
    low, high = confidence_interval(values, mean, seed=0)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=half * 0.15)
    assert high == pytest.approx(values.mean() + half, abs=half * 0.15)


def test_patients_are_resampled_not_lesions() -> None:
    # One patient with 90 lesions, all found, and nine with one each, all missed: 99 lesions are not 99 independent facts.
    rows = [(90, 90)] + [(0, 1)] * 9
    low, high = confidence_interval(rows, ratio, seed=0)
    assert low == 0.0  # some draws hold only patients whose lesion was missed
    assert high > 0.9
    as_if_independent = confidence_interval([(1, 1)] * 90 + [(0, 1)] * 9, ratio, seed=0)
    assert as_if_independent[1] - as_if_independent[0] < 0.2


def test_scans_of_one_patient_are_drawn_together() -> None:
    values = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    patients = ["a", "a", "a", "b", "b", "b"]
    assert confidence_interval(values, mean, seed=0, patients=patients) == (0.0, 1.0)
    low, high = confidence_interval(values, mean, seed=0)
    assert (low, high) != (0.0, 1.0)


def test_one_patient_or_none_gives_no_interval() -> None:
    for values in ([], [0.5]):
        assert all(math.isnan(bound) for bound in confidence_interval(values, mean, seed=0))
    one_patient = confidence_interval([0.1, 0.9], mean, seed=0, patients=["a", "a"])
    assert all(math.isnan(bound) for bound in one_patient)


def test_draws_without_a_lesion_are_left_out() -> None:
    low, high = confidence_interval([(1, 2), (0, 0), (0, 0)], ratio, seed=0)
    assert (low, high) == (0.5, 0.5)
    assert all(math.isnan(bound) for bound in confidence_interval([(0, 0), (0, 0)], ratio, seed=0))


def test_statistics_leave_out_what_is_not_a_number_and_keep_what_is_infinite() -> None:
    assert mean(np.array([1.0, math.nan, 3.0])) == 2.0
    assert median(np.array([1.0, math.nan, 3.0, math.inf])) == 3.0
    assert median(np.array([1.0, math.inf, math.inf])) == math.inf
    assert median(np.array([1.0, 2.0])) == 1.5
    assert math.isnan(median(np.array([math.nan])))
    assert math.isnan(mean(np.array([])))
