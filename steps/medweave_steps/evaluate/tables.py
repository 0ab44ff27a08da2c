"""The same figures as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.evaluation import CaseFigures
from medweave_steps.evaluate.case import CaseResult, plane_axis_of

LESION_COLUMNS = ("case_id", "lesion", "diameter_mm", "volume_mm3", "plane", "hit", "baseline_hit")


def per_case_csv(cases: Sequence[CaseFigures]) -> str:
    """Return one row per case; the columns are the fields of `CaseFigures`, empty where a figure is not defined."""
    names = [field.name for field in dataclasses.fields(CaseFigures)]
    return _csv(names, ([_cell(getattr(case, name)) for name in names] for case in cases))


def lesions_csv(results: Sequence[CaseResult], entries: Sequence[CaseEntry]) -> str:
    """Return a CSV table with one row per reference lesion.

    Columns: case id, number of the lesion, longest in-plane diameter (mm), volume (mm³), 0-based plane of its center, and whether
    the model and the baseline hit it.
    """
    rows = []
    for result, entry in zip(results, entries, strict=True):
        match, axis = result.match, plane_axis_of(entry)
        columns = zip(
            match.reference_diameters_mm, match.reference_volumes_mm3, match.reference_centres,
            match.reference_hit, result.baseline_match.reference_hit, strict=True,
        )  # fmt: skip
        for ordinal, (diameter, volume, centre, hit, baseline_hit) in enumerate(columns, start=1):
            values = (f"{diameter:.2f}", f"{volume:.2f}", round(centre[axis]), int(hit), int(baseline_hit))
            rows.append([entry.case_id, ordinal, *values])
    return _csv(LESION_COLUMNS, rows)


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return "" if value is None else value
