"""Rows of the tables that have a line or a column for each label or region."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.evaluation import CaseFigures, Evaluation, LabelFigures
from medweave_steps.report.words import figure, interval


def label_rows(evaluation: Evaluation) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the name of each label or region, and its figures with their intervals (Dice, NSD, HD95, sensitivity, false positives)
    and its number of lesions; no row for one label."""
    return [(label.name, _cells(label)) for label in evaluation.by_label]


def _cells(label: LabelFigures) -> list[tuple[str, str]]:
    pooled = (
        (label.dice_mean, label.dice_ci, 2),
        (label.nsd_2mm_mean, label.nsd_2mm_ci, 2),
        (label.hd95_mm_median, label.hd95_mm_median_ci, 1),
        (label.lesion_sensitivity_any_size, label.lesion_sensitivity_any_size_ci, 2),
        (label.false_positives_per_scan, label.false_positives_per_scan_ci, 2),
    )
    cells = [(figure(value, digits), interval(bounds, digits)) for value, bounds, digits in pooled]
    return [*cells, (str(label.lesions_any_size), "")]


def case_rows(
    evaluation: Evaluation, ranked: Sequence[CaseFigures]
) -> list[tuple[str, list[tuple[str, float | None]]]]:
    """Return the case id and the Dice of each label, as text and as a number, in the order of the table of cases."""
    by_case: dict[str, list[tuple[str, float | None]]] = {case.case_id: [] for case in ranked}
    for label in evaluation.by_label:
        for case in label.per_case:
            by_case[case.case_id].append((figure(case.dice) if case.dice is not None else "absent", case.dice))
    return [(case_id, cells) for case_id, cells in by_case.items() if cells]
