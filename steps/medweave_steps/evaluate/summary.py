"""The figures of the cohort, from those of each case, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.evaluation import BaselineFigures, Evaluation, Interval, LabelCaseFigures, LabelFigures
from medweave_steps.evaluate.case import BaselineRule, CaseResult, number
from medweave_steps.evaluate.compared import ComparedLabels
from medweave_steps.metrics import bootstrap
from medweave_steps.metrics.lesions import LesionMatch

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Settings of the bootstrap for confidence intervals.

    Attributes:
        seed: of every interval, so that all see the same patients.
        num_resamples: draws per interval.
        patients: the patient of each case.
    """

    seed: int
    num_resamples: int
    patients: tuple[str, ...]

    def pooled(self, values: Any, statistic: Callable[[Rows], float]) -> tuple[float | None, Interval | None]:
        """Return a figure over all cases and its interval; None where it is not defined."""
        rows = np.asarray(values, dtype=np.float64)
        low, high = bootstrap.confidence_interval(
            rows, statistic, seed=self.seed, patients=self.patients, num_resamples=self.num_resamples
        )
        known = math.isfinite(low) and math.isfinite(high)
        return number(statistic(rows)), (round(low, 6), round(high, 6)) if known else None


def summarise(
    results: Sequence[CaseResult],
    *,
    compared: ComparedLabels,
    rule: BaselineRule,
    synthetic: bool,
    without_ground_truth: Sequence[str],
    seed: int,
    num_resamples: int,
) -> Evaluation:
    """Aggregate the results of all cases.

    Args:
        results: at least one case.
        compared: labels and regions that were evaluated.
        rule: rule of the baseline, which the result contains.
        synthetic: as stated by the cohort index.
        without_ground_truth: ids of cases without a ground truth.
        seed, num_resamples: of the bootstrap.
    """
    figures = [result.figures for result in results]
    draws = Draws(seed=seed, num_resamples=num_resamples, patients=tuple(case.patient_key for case in figures))
    by_label = []
    for place, output in enumerate(compared.outputs):
        own = [result.by_label[place] for result in results]
        pooled = _pooled([one.figures for one in own], [one.match for one in own], draws, synthetic=synthetic)
        per_case = tuple(one.figures for one in own)
        by_label.append(LabelFigures(name=output.name, values=output.values, per_case=per_case, **pooled))
    values = _pooled(figures, [result.match for result in results], draws, synthetic=synthetic)
    if by_label:
        dices = np.array([[_or_nan(case.dice) for case in one.per_case] for one in by_label]).T
        _put(values, "dice_by_label_mean", "dice_by_label_ci", draws.pooled(dices, _mean_over_labels))
    return Evaluation(
        cases_without_ground_truth=tuple(without_ground_truth),
        bootstrap={"seed": float(seed), "num_resamples": float(num_resamples), "level": bootstrap.LEVEL},
        baseline=_baseline(results, rule, draws),
        per_case=tuple(figures),
        by_label=tuple(by_label),
        labels_not_evaluated=compared.not_evaluated,
        **values,
    )


def _pooled(
    figures: Sequence[LabelCaseFigures], matches: Sequence[LesionMatch], draws: Draws, *, synthetic: bool
) -> dict[str, Any]:
    """Return the fields of `PooledFigures` for one label or region, or for all labels as one mask."""
    dices = [_or_nan(case.dice) for case in figures]
    one_empty = [case for case in figures if case.hd95_mm is None and case.dice is not None]
    # A scan where exactly one mask is empty is infinitely far off; in a median it counts as the worst.
    hd95 = [math.inf if case in one_empty else _or_nan(case.hd95_mm) for case in figures]
    values: dict[str, Any] = {}
    _put(values, "dice_mean", "dice_ci", draws.pooled(dices, bootstrap.mean))
    _put(values, "dice_median", "dice_median_ci", draws.pooled(dices, bootstrap.median))
    _put(values, "nsd_2mm_mean", "nsd_2mm_ci", draws.pooled([_or_nan(c.nsd_2mm) for c in figures], bootstrap.mean))
    _put(values, "hd95_mm_median", "hd95_mm_median_ci", draws.pooled(hd95, bootstrap.median))
    for name, low, high in _SIZES:
        key = f"lesion_sensitivity_{name}"
        _put(values, key, f"{key}_ci", draws.pooled(_hits(matches, low, high), bootstrap.ratio))
    key = "false_positives_per_scan"
    _put(values, key, f"{key}_ci", draws.pooled([c.false_positives for c in figures], bootstrap.mean))
    return values | {
        "synthetic": synthetic,
        "patients": len(set(draws.patients)),
        "cases": len(figures),
        "lesions": _num_lesions(matches, 6, math.inf),
        "lesions_10mm": _num_lesions(matches, 10, math.inf),
        "lesions_6_to_8mm": _num_lesions(matches, 6, 8),
        "lesions_any_size": _num_lesions(matches, 0, math.inf),
        "cases_both_empty": sum(case.dice is None for case in figures),
        "cases_one_empty": len(one_empty),
    }


def _mean_over_labels(rows: Rows) -> float:
    """Return the mean over labels of their mean Dice; labels without any Dice are left out."""
    means = [bootstrap.mean(column) for column in rows.T]
    return bootstrap.mean(np.asarray(means))


_SIZES = (("10mm", 10.0, math.inf), ("6mm", 6.0, math.inf), ("6_to_8mm", 6.0, 8.0), ("any_size", 0.0, math.inf))


def _baseline(results: Sequence[CaseResult], rule: BaselineRule, draws: Draws) -> BaselineFigures:
    values: dict[str, Any] = {}
    dices = [_or_nan(result.figures.baseline_dice) for result in results]
    extra = [result.figures.baseline_false_positives for result in results]
    hits = _hits([result.baseline_match for result in results], 6.0, math.inf)
    _put(values, "dice_mean", "dice_ci", draws.pooled(dices, bootstrap.mean))
    _put(values, "false_positives_per_scan", "false_positives_per_scan_ci", draws.pooled(extra, bootstrap.mean))
    _put(values, "lesion_sensitivity_6mm", "lesion_sensitivity_6mm_ci", draws.pooled(hits, bootstrap.ratio))
    values["threshold_hu" if rule.is_ct else "threshold_sd"] = rule.threshold
    return BaselineFigures(volume_mm3=rule.volume_mm3, inside_lungs=rule.inside_lungs, **values)


def _put(values: dict[str, Any], key: str, interval_key: str, pooled: tuple[float | None, Interval | None]) -> None:
    values[key], values[interval_key] = pooled


def _hits(matches: Sequence[LesionMatch], low: float, high: float) -> list[tuple[int, int]]:
    return [match.count(at_least_mm=low, below_mm=high) for match in matches]


def _num_lesions(matches: Sequence[LesionMatch], low: float, high: float) -> int:
    return sum(count for _, count in _hits(matches, low, high))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
