"""`classifications.csv`: one row per case, for spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.classes import CLASS_SEPARATOR
from medweave_core.contracts.classifications import ClassifiedCase
from medweave_steps.runtime.tables import csv_text


def columns_of(names: Sequence[str]) -> dict[str, str]:
    """Return the columns of the table with their meaning.

    Args:
        names: of the classes, in the order of the model.
    """
    return {
        "case_id": "pseudonymous id of the case",
        "predicted": f"predicted class; several are separated by {CLASS_SEPARATOR}, and a case without any has an empty cell",
        **{f"probability_{name}": f"calibrated probability of {name}, from 0 to 1" for name in names},
    }


def table_of(cases: Sequence[ClassifiedCase], names: Sequence[str]) -> str:
    """Return the table as CSV; probabilities have six decimals."""
    rows = (
        [
            case.case_id,
            CLASS_SEPARATOR.join(case.classes),
            *(f"{case.probabilities[name]:.6f}" for name in names),
        ]
        for case in cases
    )
    return csv_text(columns_of(names), rows)
