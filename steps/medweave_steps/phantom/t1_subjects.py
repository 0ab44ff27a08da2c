"""The subjects of `medweave-step phantom t1`: group, sex, age and MMSE as in a published table of 1,193 scans.

Source: Akintoye, Han, Zhang, Chen and Zhang 2021, "A Hybrid Parallelization Approach for Distributed and Scalable Deep Learning",
table 2. AD: Alzheimer's disease; pMCI and sMCI: progressive and stable mild cognitive impairment; NC: normal controls. MMSE:
Mini-Mental State Examination, 0 to 30 points.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_steps.phantom.patient import Patient, names_in_turn

MOST_POINTS = 30
_AGES = (50.0, 100.0)
"""Years to which ages are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One row of the table.

    Attributes:
        sexes: subjects by sex, M and F.
        age: mean and standard deviation, years.
        mmse: mean and standard deviation, points.
    """

    sexes: Mapping[str, int]
    age: tuple[float, float]
    mmse: tuple[float, float]

    @property
    def number(self) -> int:
        """Number of subjects."""
        return sum(self.sexes.values())


GROUPS: Mapping[str, Group] = {
    "AD": Group(sexes={"M": 202, "F": 187}, age=(75.95, 7.53), mmse=(23.28, 2.03)),
    "pMCI": Group(sexes={"M": 105, "F": 67}, age=(75.57, 7.13), mmse=(26.59, 1.71)),
    "sMCI": Group(sexes={"M": 155, "F": 77}, age=(75.71, 7.87), mmse=(27.27, 1.78)),
    "NC": Group(sexes={"M": 202, "F": 198}, age=(76.02, 5.18), mmse=(29.10, 1.01)),
}
WHOLE_TABLE = sum(group.number for group in GROUPS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One subject.

    Attributes:
        age: years, to a tenth.
        mmse: points.
    """

    patient: Patient
    group: str
    sex: str
    age: float
    mmse: int

    @property
    def label(self) -> str:
        """Return the BIDS subject, such as sub-0001."""
        return f"sub-{self.patient.ordinal:04d}"


def subjects_of(number: int, *, seed: int) -> list[Subject]:
    """Return the first subjects of a cohort; more subjects continue the same list.

    Every list has groups and sexes in the proportions of the table, to within about one subject; `WHOLE_TABLE` subjects have its
    numbers exactly.
    """
    groups = names_in_turn({name: group.number for name, group in GROUPS.items()}, number)
    sexes = {name: iter(names_in_turn(group.sexes, groups.count(name))) for name, group in GROUPS.items()}
    return [
        _subject(Patient(seed=seed, ordinal=ordinal, held_out=False, prefix="t1"), name, next(sexes[name]))
        for ordinal, name in enumerate(groups, start=1)
    ]


def _subject(patient: Patient, name: str, sex: str) -> Subject:
    group = GROUPS[name]
    rng = np.random.default_rng([1, patient.chest_seed])
    age = float(np.clip(rng.normal(*group.age), *_AGES))
    mmse = int(rng.choice(MOST_POINTS + 1, p=_chances_of_points(*group.mmse)))
    return Subject(patient=patient, group=name, sex=sex, age=round(age, 1), mmse=mmse)


@functools.cache
def _chances_of_points(mean: float, deviation: float) -> NDArray[np.float64]:
    """Return the probabilities of 0 to 30 points with this mean and standard deviation: a normal distribution of whole numbers.

    A rounded normal variable, cut off at 30 points, would have a lower mean. Probabilities are exp(a x + b x^2), where x is the
    distance from the mean; Newton's method finds a and b for which x has mean 0 and the variance.
    """
    x = np.arange(MOST_POINTS + 1) - mean
    powers = np.stack([x, x**2])
    factors = np.array([0.0, -0.5 / deviation**2])
    for _ in range(50):
        weights = np.exp(factors @ powers)
        chances = weights / weights.sum()
        moments = powers @ chances
        covariance = (powers * chances) @ powers.T - np.outer(moments, moments)
        factors += np.linalg.solve(covariance, np.array([0.0, deviation**2]) - moments)
    found: NDArray[np.float64] = chances
    return found
