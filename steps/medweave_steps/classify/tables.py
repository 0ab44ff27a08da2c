"""`classifications.csv`: one row per case, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from medweave_core.contracts.classifications import ClassifiedCase

SEPARATOR = "|"  # between the classes of a case, as in the tables of public chest X-ray data sets


def columns_of(names: Sequence[str]) -> dict[str, str]:
    """Return the columns of the table with their meaning.

    Args:
        names: of the classes, in the order of the model.
    """
    return {
        "case_id": "pseudonymous id of the case",
        "predicted": f"predicted class; several are separated by {SEPARATOR}, and a case without any has an empty cell",
        **{f"probability_{name}": f"calibrated probability of {name}, from 0 to 1" for name in names},
    }


def table_of(cases: Sequence[ClassifiedCase], names: Sequence[str]) -> str:
    """Return the table as CSV; probabilities have six decimals."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns_of(names))
    for case in cases:
        probabilities = [f"{case.probabilities[name]:.6f}" for name in names]
        writer.writerow([case.case_id, SEPARATOR.join(case.classes), *probabilities])
    return text.getvalue()
