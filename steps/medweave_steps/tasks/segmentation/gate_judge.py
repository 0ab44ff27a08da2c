"""How `gate` judges segmentations: Dice, lesion sensitivity and false positives per scan, of each label or region."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.gate import (
    GateCase,
    GateComparison,
    GateDifference,
    GateFigures,
    GateLabelCase,
    GateLabelComparison,
    GateLabelFigures,
    GateTolerances,
)
from medweave_core.contracts.labels import slugs
from medweave_steps.metrics.bootstrap import confidence_interval, mean
from medweave_steps.tasks.judge import Judge, Judged, at_most, change_text, judged_interval, number_or_none, within

Rows = npt.NDArray[np.float64]


class SegmentationJudge(Judge):
    """Dice by its interval, sensitivity and false positives by their values; of several labels each one must pass."""

    options = ("dice_tolerance", "sensitivity_tolerance", "false_positive_tolerance")

    def tolerances(self, limits: Mapping[str, float], *, min_speedup: float, max_slowdown: float) -> GateTolerances:
        """Return the limits of a candidate."""
        return GateTolerances(
            dice=limits["dice_tolerance"],
            sensitivity=limits["sensitivity_tolerance"],
            false_positives_per_scan=limits["false_positive_tolerance"],
            min_speedup=min_speedup,
            max_slowdown=max_slowdown,
        )

    def figures(self, cases: Sequence[GateCase]) -> GateFigures:
        """Return mean Dice, pooled sensitivity and false positives per scan of one model; of several labels for each, too."""
        dice, sensitivity, false_positives = _figures(cases)
        return GateFigures(
            dice_mean=dice,
            lesion_sensitivity=sensitivity,
            false_positives_per_scan=false_positives,
            cases=tuple(cases),
            by_label={name: _of_label(own) for name, own in cases_by_label(cases).items()},
        )

    def compare(self, base: Sequence[GateCase], candidate: Sequence[GateCase], *, seed: int) -> GateComparison:
        """Return the paired differences, candidate minus float32, with confidence intervals over patients."""
        assert [case.case_id for case in base] == [case.case_id for case in candidate]
        patients = [case.patient_key for case in base]
        labels, base_labels = cases_by_label(candidate), cases_by_label(base)
        pooled = _differences(base, candidate, patients, seed=seed)
        return GateComparison(
            figures=self.figures(candidate),
            dice=pooled.dice,
            lesion_sensitivity=pooled.lesion_sensitivity,
            false_positives_per_scan=pooled.false_positives_per_scan,
            by_label={name: _differences(base_labels[name], own, patients, seed=seed) for name, own in labels.items()},
        )

    def judged(self, comparison: GateComparison, tolerances: GateTolerances) -> list[Judged]:
        """Return whether the figures stay within the tolerances; of several labels each one must, and its reasons name it."""
        parts: Mapping[str, GateComparison | GateLabelComparison] = comparison.by_label or {"": comparison}
        judged: list[Judged] = []
        for name, part in parts.items():
            figures_of_label = (
                judged_interval("Dice", part.dice, tolerances.dice),
                _judged_sensitivity(part.lesion_sensitivity.value, tolerances.sensitivity),
                _judged_false_positives(part.false_positives_per_scan.value, tolerances.false_positives_per_scan),
            )
            of_label = f"{name}: " if name else ""
            judged += [(good, of_label + text) for good, text in figures_of_label]
        return judged

    def metrics(self, figures: GateFigures) -> dict[str, float | None]:
        """Return the figures under the names that a trained model's card has for them."""
        parts: dict[str, GateFigures | GateLabelFigures] = {"": figures}
        for slug, of_label in zip(slugs(tuple(figures.by_label)), figures.by_label.values(), strict=True):
            parts[f"_{slug}"] = of_label
        metrics: dict[str, float | None] = {}
        for suffix, part in parts.items():
            metrics[f"validation_dice{suffix}"] = part.dice_mean
            metrics[f"validation_sensitivity{suffix}"] = part.lesion_sensitivity
            metrics[f"validation_false_positives_per_scan{suffix}"] = part.false_positives_per_scan
        return metrics


def cases_by_label(cases: Sequence[GateCase]) -> dict[str, list[GateLabelCase]]:
    """Return the cases of each label or region, by name; an empty mapping for a model with one."""
    return {name: [case.by_label[name] for case in cases] for name in cases[0].by_label}


def _of_label(cases: Sequence[GateLabelCase]) -> GateLabelFigures:
    dice, sensitivity, false_positives = _figures(cases)
    return GateLabelFigures(dice_mean=dice, lesion_sensitivity=sensitivity, false_positives_per_scan=false_positives)


def _figures(cases: Sequence[GateCase | GateLabelCase]) -> tuple[float, float | None, float]:
    lesions = sum(case.lesions for case in cases)
    return (
        float(np.mean([case.dice for case in cases])),
        sum(case.lesions_hit for case in cases) / lesions if lesions else None,
        float(np.mean([case.false_positives for case in cases])),
    )


def _differences(
    base: Sequence[GateCase | GateLabelCase],
    candidate: Sequence[GateCase | GateLabelCase],
    patients: Sequence[str],
    *,
    seed: int,
) -> GateLabelComparison:
    pairs = list(zip(base, candidate, strict=True))

    def difference(values: Sequence[object], statistic: Callable[[Rows], float]) -> GateDifference:
        rows = np.asarray(values, dtype=np.float64)
        low, high = confidence_interval(rows, statistic, seed=seed, patients=patients)
        return GateDifference(
            value=number_or_none(statistic(rows)), lower=number_or_none(low), upper=number_or_none(high)
        )

    return GateLabelComparison(
        dice=difference([c.dice - b.dice for b, c in pairs], mean),
        lesion_sensitivity=difference([(c.lesions_hit - b.lesions_hit, b.lesions) for b, c in pairs], _pooled),
        false_positives_per_scan=difference([c.false_positives - b.false_positives for b, c in pairs], mean),
    )


def _judged_sensitivity(change: float | None, tolerance: float) -> Judged:
    if change is None:
        return False, "sensitivity cannot be judged: the validation split has no lesion"
    sentence = f"lesion sensitivity {change_text(change, -tolerance)}"
    return within(at_most(-change, tolerance), sentence, f"may fall by {tolerance:g}")


def _judged_false_positives(change: float | None, tolerance: float) -> Judged:
    assert change is not None
    sentence = f"false positives per scan {change_text(change, tolerance)}"
    return within(at_most(change, tolerance), sentence, f"may rise by {tolerance:g}")


def _pooled(rows: Rows) -> float:
    lesions = rows[:, 1].sum()
    return float(rows[:, 0].sum() / lesions) if lesions else math.nan
