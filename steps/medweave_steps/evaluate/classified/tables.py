"""The same figures as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence

from medweave_core.contracts.classification_evaluation import ClassFigures, ClassificationEvaluation

_SEPARATOR = "|"  # between the classes of a case


def per_case_csv(evaluation: ClassificationEvaluation) -> str:
    """Return one row per case: known, predicted and the baseline's classes, then the probability of each class."""
    names = [one.name for one in evaluation.classes]
    first = ["case_id", "patient_key", "classes", "predicted", "is_correct", "true_probability", "baseline_predicted"]
    rows = (
        [
            case.case_id,
            case.patient_key,
            _SEPARATOR.join(case.classes),
            _SEPARATOR.join(case.predicted),
            int(case.is_correct),
            case.true_probability,
            _SEPARATOR.join(case.baseline_predicted or ()),
            *(case.probabilities[name] for name in names),
        ]
        for case in evaluation.per_case
    )
    return _csv([*first, *(f"probability_{name}" for name in names)], rows)


def per_class_csv(evaluation: ClassificationEvaluation) -> str:
    """Return one row per class: the fields of `ClassFigures`, an interval as two columns, empty where a figure is not defined."""
    fields = [field.name for field in dataclasses.fields(ClassFigures)]
    header = [part for name in fields for part in _columns(name)]
    return _csv(header, ([cell for name in fields for cell in _cells(one, name)] for one in evaluation.by_class))


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


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
