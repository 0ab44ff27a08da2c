"""`statistics.json`: groups of measurements compared by analysis of variance, or by paired tests over patients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.evaluation import Interval
from medweave_core.contracts.volume import DataClass

STATISTICS_FILE = "statistics.json"

Design = Literal["independent", "paired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """The values of one level of the factor; in the paired design one value per patient.

    Attributes:
        name: the level.
        count: number of values.
        mean, median, minimum, maximum: of the values, in the unit of the response.
        sd: standard deviation with the divisor count − 1.
        letters: groups without a letter in common differ; the largest mean has an `a`.
    """

    name: str
    count: int
    mean: float
    sd: float
    median: float
    minimum: float
    maximum: float
    letters: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnovaRow:
    """One row of the table of a one-way analysis of variance.

    Attributes:
        source: name of the factor, or `Residuals`.
        df: degrees of freedom.
        sum_sq: sum of squares.
        mean_sq: sum of squares over degrees of freedom.
        f: mean square of the factor over that of the residuals; null in the row of the residuals.
        p: probability of such an F or a larger one if all groups have the same mean; null in the row of the residuals.
        adjusted_p: p after Holm's correction over all analyses; equal to p for a single analysis.
    """

    source: str
    df: int
    sum_sq: float
    mean_sq: float
    f: float | None = None
    p: float | None = None
    adjusted_p: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two groups.

    Attributes:
        first, second: names of the groups.
        difference: mean of the first minus mean of the second.
        interval: of the difference, level 1 − alpha. Independent: simultaneous, by Tukey's distribution. Paired: of this pair
            alone, by bootstrap over patients.
        p: independent: by Tukey's distribution, for all pairs together. Paired: of the Wilcoxon signed-rank test of this
            pair alone.
        adjusted_p: for all pairs together: paired, p after Holm's correction; independent, equal to p.
        is_different: adjusted_p is below alpha.
    """

    first: str
    second: str
    difference: float
    interval: Interval
    p: float
    adjusted_p: float
    is_different: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The comparison of all groups, of one value of the column `by` where there is one.

    Attributes:
        name: the value of the column `by`; empty without one.
        groups: numbers in ascending order, other names in the order of the table.
        comparisons: every pair of groups, the group with the larger mean first.
        anova: rows of the factor and of the residuals; empty in the paired design.
        q: quantile 1 − alpha of the studentized range; null in the paired design.
        hsd: honestly significant difference, q × √(mean square of the residuals / values per group); null in the paired design and
            for groups of unequal size, where the Tukey-Kramer method has another difference for each pair.
        patients: number of patients; null in the independent design.
    """

    name: str
    groups: tuple[GroupFigures, ...]
    comparisons: tuple[Comparison, ...]
    anova: tuple[AnovaRow, ...] = ()
    q: float | None = None
    hsd: float | None = None
    patients: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The whole of `statistics.json`. It names groups, and no patient.

    Attributes:
        response: column of the measured values.
        factor: column of the groups.
        by: column whose values are analyzed separately; empty without one.
        design: independent values, or paired by patient.
        alpha: probability of an error of the first kind over all pairs of an analysis.
        bootstrap: seed, draws and level of the intervals of paired differences; empty in the independent design.
        analyses: one, or one for each value of `by`.
    """

    response: str
    factor: str
    by: str
    design: Design
    alpha: float
    bootstrap: Mapping[str, float]
    analyses: tuple[Analysis, ...]
    statistics_version: Literal[1] = 1
    data_class: DataClass = "aggregate"
