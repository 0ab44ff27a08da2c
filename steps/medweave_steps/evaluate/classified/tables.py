"""The same figures as CSV, for spreadsheets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from medweave_core.contracts.classes import CLASS_SEPARATOR
from medweave_core.contracts.classification_evaluation import ClassFigures, ClassificationEvaluation
from medweave_steps.runtime.tables import csv_text


def per_case_csv(evaluation: ClassificationEvaluation) -> str:
    """Return one row per case: known, predicted and the baseline's classes, then the probability of each class."""
    names = [one.name for one in evaluation.classes]
    first = ["case_id", "patient_key", "classes", "predicted", "is_correct", "true_probability", "baseline_predicted"]
    rows = (
        [
            case.case_id,
            case.patient_key,
            CLASS_SEPARATOR.join(case.classes),
            CLASS_SEPARATOR.join(case.predicted),
            int(case.is_correct),
            case.true_probability,
            CLASS_SEPARATOR.join(case.baseline_predicted or ()),
            *(case.probabilities[name] for name in names),
        ]
        for case in evaluation.per_case
    )
    return csv_text([*first, *(f"probability_{name}" for name in names)], rows)


def per_class_csv(evaluation: ClassificationEvaluation) -> str:
    """Return one row per class: the fields of `ClassFigures`, an interval as two columns, empty where a figure is not defined."""
    fields = [field.name for field in dataclasses.fields(ClassFigures)]
    header = [part for name in fields for part in _columns(name)]
    return csv_text(header, ([cell for name in fields for cell in _cells(one, name)] for one in evaluation.by_class))


def _columns(name: str) -> Sequence[str]:
    stem = name.removesuffix("_ci")
    return (f"{stem}_low", f"{stem}_high") if _is_interval(name) else (name,)


def _is_interval(name: str) -> bool:
    return name.endswith("_ci")


def _cells(one: ClassFigures, name: str) -> Sequence[object]:
    value = getattr(one, name)
    if _is_interval(name):
        return value or ("", "")
    return ("" if value is None else value,)
