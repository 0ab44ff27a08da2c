"""Tables for spreadsheets: `classifications.csv`, one row per case, and of an ECG `recordings.csv`, one row per recording."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.classes import CLASS_SEPARATOR
from medweave_core.contracts.classifications import ClassifiedCase
from medweave_steps.io.cohort.signals import recording_of
from medweave_steps.runtime.tables import csv_text
from medweave_steps.tasks.classification.recordings import mean_probabilities


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


def recordings_table_of(cases: Sequence[ClassifiedCase], names: Sequence[str]) -> str:
    """Return the table of the recordings that the cases are samples of, as CSV.

    Each has its number of samples, the mean of their calibrated probabilities for each class, and the class with the largest mean.
    """
    samples: dict[str, list[ClassifiedCase]] = {}
    for case in cases:
        samples.setdefault(recording_of(case.case_id), []).append(case)
    rows = []
    for recording, own in samples.items():
        mean_C = mean_probabilities([case.probabilities for case in own], names)
        rows.append([recording, len(own), names[int(mean_C.argmax())], *(f"{value:.6f}" for value in mean_C)])
    return csv_text(("recording", "samples", "predicted", *(f"probability_{name}" for name in names)), rows)


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
