"""The same figures as CSV, for spreadsheets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.evaluation import ALL_LABELS, CaseFigures, Evaluation
from medweave_core.contracts.labels import Region
from medweave_steps.evaluate.case import CaseResult, plane_axis_of
from medweave_steps.metrics.lesions import LesionMatch
from medweave_steps.runtime.tables import csv_text

LESION_COLUMNS = ("case_id", "lesion", "diameter_mm", "volume_mm3", "plane", "hit", "baseline_hit")


def per_case_csv(evaluation: Evaluation) -> str:
    """Return one row per case; the columns are the fields of `CaseFigures`, empty where a figure is not defined.

    With several labels the second column is the label: a row for all labels as one mask, then one for each label or region.
    """
    names = [field.name for field in dataclasses.fields(CaseFigures)]
    if not evaluation.by_label:
        return csv_text(names, ([_cell(getattr(case, name)) for name in names] for case in evaluation.per_case))
    rows = []
    for place, case in enumerate(evaluation.per_case):
        labels = [(label.name, label.per_case[place]) for label in evaluation.by_label]
        for label, figures in [(ALL_LABELS, case), *labels]:
            first, *others = [_cell(getattr(figures, name, None)) for name in names]
            rows.append([first, label, *others])
    return csv_text([names[0], "label", *names[1:]], rows)


def lesions_csv(results: Sequence[CaseResult], entries: Sequence[CaseEntry], outputs: Sequence[Region] = ()) -> str:
    """Return a CSV table with one row per reference lesion.

    Columns: case id, number of the lesion, longest in-plane diameter (mm), volume (mm³), 0-based plane of its center, and whether
    the model and the baseline hit it. With several labels the second column is the label, as in `per_case_csv`; the baseline is
    compared with all labels only.
    """
    rows = []
    for result, entry in zip(results, entries, strict=True):
        labels: list[tuple[str, LesionMatch, Sequence[bool | None]]]
        labels = [(ALL_LABELS, result.match, result.baseline_match.reference_hit)]
        for output, one in zip(outputs, result.by_label, strict=True):
            labels.append((output.name, one.match, (None,) * len(one.match.reference_hit)))
        for name, match, baseline_hit in labels:
            first = [entry.case_id, name] if outputs else [entry.case_id]
            rows += [[*first, *row] for row in _lesion_rows(match, baseline_hit, plane_axis_of(entry))]
    columns = (LESION_COLUMNS[0], "label", *LESION_COLUMNS[1:]) if outputs else LESION_COLUMNS
    return csv_text(columns, rows)


def _lesion_rows(match: LesionMatch, baseline_hits: Sequence[bool | None], axis: int) -> Iterator[list[object]]:
    columns = zip(
        match.reference_diameters_mm, match.reference_volumes_mm3, match.reference_centres, match.reference_hit,
        baseline_hits, strict=True,
    )  # fmt: skip
    for ordinal, (diameter, volume, centre, hit, baseline_hit) in enumerate(columns, start=1):
        values = (f"{diameter:.2f}", f"{volume:.2f}", round(centre[axis]), int(hit))
        yield [ordinal, *values, "" if baseline_hit is None else int(baseline_hit)]


def _cell(value: object) -> object:
    return "" if value is None else value
