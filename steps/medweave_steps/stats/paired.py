"""Measurements paired by patient: Wilcoxon signed-rank tests, bootstrap intervals, and Holm's correction."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.statistics import Analysis, Comparison
from medweave_core.errors import UserInputError
from medweave_steps.metrics.bootstrap import confidence_interval, mean
from medweave_steps.runtime.imports import require
from medweave_steps.stats.correction import adjust_holm
from medweave_steps.stats.groups import EXTRA, check_groups, figures_of
from medweave_steps.stats.measurements import Measurements

Values = Mapping[str, npt.NDArray[np.float64]]


def analyze_paired(name: str, measurements: Measurements, *, alpha: float, seed: int, num_resamples: int) -> Analysis:
    """Return the paired test of each pair of groups over patients.

    Args:
        seed, num_resamples: of the bootstrap; all pairs draw the same patients.
    Raises:
        UserInputError: fewer than two groups or patients, a patient without a value in one of the groups, or constant values.
    """
    values = values_of_patients(measurements, name)
    check_groups(values, name, unit="patient")
    if np.ptp(np.concatenate(list(values.values()))) == 0:
        raise UserInputError(
            f"the values do not vary{f' in {name}' if name else ''}.",
            seen="the same value for all patients in all groups",
            expected="values with a variance above 0",
            do="check the column of --response: constant values have no test",
        )
    comparisons = paired_comparisons(values, alpha=alpha, seed=seed, num_resamples=num_resamples)
    return Analysis(
        name=name,
        groups=figures_of(values, comparisons),
        comparisons=comparisons,
        patients=len(next(iter(values.values()))),
    )


def values_of_patients(measurements: Measurements, name: str = "") -> Values:
    """Return one value per patient of each group, the mean of the patient's values, with the patients in the same order.

    Raises:
        UserInputError: a patient has values in some of the groups only; the message has no patient's name.
    """
    by_group: dict[str, dict[str, list[float]]] = {}
    for group in measurements.groups:
        own = by_group.setdefault(group, {})
        for patient, value in zip(measurements.patients[group], measurements.values[group], strict=True):
            own.setdefault(patient, []).append(value)
    everyone = sorted(set().union(*by_group.values()))
    incomplete = {group: len(everyone) - len(own) for group, own in by_group.items() if len(own) < len(everyone)}
    if incomplete:
        raise UserInputError(
            f"the groups{f' of {name}' if name else ''} do not have the same patients.",
            seen="; ".join(f"{group}: {missing} of {len(everyone)} missing" for group, missing in incomplete.items()),
            expected="a value of every patient in every group: the test is paired",
            do="remove patients without a value in one of the groups, or correct the column of --patient",
        )
    return {
        group: np.array([sum(own[patient]) / len(own[patient]) for patient in everyone])
        for group, own in by_group.items()
    }


def paired_comparisons(values: Values, *, alpha: float, seed: int, num_resamples: int) -> tuple[Comparison, ...]:
    """Return the test of each pair, the group with the larger mean first."""
    pairs = [
        sorted(pair, key=lambda group: values[group].mean(), reverse=True) for pair in itertools.combinations(values, 2)
    ]
    differences = [values[first] - values[second] for first, second in pairs]
    p_values = [wilcoxon_p(own) for own in differences]
    return tuple(
        Comparison(
            first=first,
            second=second,
            difference=float(own.mean()),
            interval=confidence_interval(own, mean, seed=seed, num_resamples=num_resamples, level=1 - alpha),
            p=p,
            adjusted_p=adjusted,
            is_different=adjusted < alpha,
        )
        for (first, second), own, p, adjusted in zip(pairs, differences, p_values, adjust_holm(p_values), strict=True)
    )


def wilcoxon_p(differences: npt.NDArray[np.float64]) -> float:
    """Return the two-sided p-value of the Wilcoxon signed-rank test; 1 if all differences are 0.

    Differences of 0 are left out. The distribution is exact for up to 50 different absolute values, else normal.

    Source: Wilcoxon 1945, Biometrics Bulletin 1(6):80-83; scipy.stats.wilcoxon.
    """
    if not np.any(differences):
        return 1.0
    return float(require("scipy.stats", extra=EXTRA).wilcoxon(differences).pvalue)


def smallest_p(patients: int) -> float:
    """Return the smallest p-value that the signed-rank test can have with so many patients."""
    return float(min(1.0, 2.0 ** (1 - patients)))
