"""Independent measurements: one-way analysis of variance, and Tukey's honestly significant difference."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.statistics import Analysis, AnovaRow, Comparison
from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require
from medweave_steps.stats.correction import adjust_holm
from medweave_steps.stats.groups import EXTRA, check_groups, figures_of
from medweave_steps.stats.measurements import Measurements

Values = Mapping[str, npt.NDArray[np.float64]]


def analyze_independent(name: str, measurements: Measurements, *, factor: str, alpha: float) -> Analysis:
    """Return the analysis of variance of the groups, and Tukey's test of each pair.

    Raises:
        UserInputError: fewer than two groups, a group with one value, or no variation within the groups.
    """
    values: Values = {group: np.asarray(measurements.values[group]) for group in measurements.groups}
    check_groups(values, name)
    factor_row, residuals = anova_rows(values, factor)
    if not residuals.mean_sq > 0:
        raise UserInputError(
            f"the values do not vary within the groups{f' of {name}' if name else ''}.",
            seen="all values of each group are equal",
            expected="values of repeated measurements, with a variance above 0",
            do="check the column of --response: constant values have no test",
        )
    q = _studentized_range(alpha, len(values), residuals.df)
    sizes = {len(own) for own in values.values()}
    comparisons = tukey_comparisons(values, q=q, mean_sq=residuals.mean_sq, alpha=alpha)
    return Analysis(
        name=name,
        groups=figures_of(values, comparisons),
        comparisons=comparisons,
        anova=(factor_row, residuals),
        q=q,
        hsd=q * math.sqrt(residuals.mean_sq / sizes.pop()) if len(sizes) == 1 else None,
    )


def anova_rows(values: Values, factor: str) -> tuple[AnovaRow, AnovaRow]:
    """Return the rows of the factor and of the residuals.

    Args:
        values: two or more groups, each with two or more values.
    """
    pooled = np.concatenate(list(values.values()))
    between = float(sum(len(own) * (own.mean() - pooled.mean()) ** 2 for own in values.values()))
    within = float(sum(((own - own.mean()) ** 2).sum() for own in values.values()))
    df, residual_df = len(values) - 1, len(pooled) - len(values)
    residuals = AnovaRow(source="Residuals", df=residual_df, sum_sq=within, mean_sq=within / residual_df)
    row = AnovaRow(source=factor, df=df, sum_sq=between, mean_sq=between / df)
    if within > 0:
        result = require("scipy.stats", extra=EXTRA).f_oneway(*values.values())
        p = float(result.pvalue)
        row = dataclasses.replace(row, f=float(result.statistic), p=p, adjusted_p=p)
    return row, residuals


def tukey_comparisons(values: Values, *, q: float, mean_sq: float, alpha: float) -> tuple[Comparison, ...]:
    """Return Tukey's test of each pair, the group with the larger mean first; Tukey-Kramer for groups of unequal size.

    Args:
        q: quantile 1 − alpha of the studentized range.
        mean_sq: mean square of the residuals.
    """
    p_values = require("scipy.stats", extra=EXTRA).tukey_hsd(*values.values()).pvalue
    comparisons = []
    for (place, one), (other_place, other) in itertools.combinations(enumerate(values), 2):
        first, second = sorted((one, other), key=lambda group: values[group].mean(), reverse=True)
        difference = float(values[first].mean() - values[second].mean())
        margin = q * math.sqrt(mean_sq / 2 * (1 / len(values[one]) + 1 / len(values[other])))
        p = float(p_values[place][other_place])
        comparisons.append(
            Comparison(
                first=first,
                second=second,
                difference=difference,
                interval=(difference - margin, difference + margin),
                p=p,
                adjusted_p=p,
                is_different=p < alpha,
            )
        )
    return tuple(comparisons)


def adjust_analyses(analyses: Sequence[Analysis]) -> tuple[Analysis, ...]:
    """Return the analyses with the p-values of their factors after Holm's correction over all of them."""
    adjusted = adjust_holm([analysis.anova[0].p or 0.0 for analysis in analyses])
    return tuple(
        dataclasses.replace(analysis, anova=(dataclasses.replace(analysis.anova[0], adjusted_p=p), *analysis.anova[1:]))
        for analysis, p in zip(analyses, adjusted, strict=True)
    )


def _studentized_range(alpha: float, groups: int, df: int) -> float:
    return float(require("scipy.stats", extra=EXTRA).studentized_range.ppf(1 - alpha, groups, df))
