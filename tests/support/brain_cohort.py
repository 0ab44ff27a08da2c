"""A folder in the format of MSD Task01: synthetic brains of few voxels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medweave_steps.phantom.brain import LABELS
from medweave_steps.phantom.brain_cohort import DATA_SET, BrainJob, write_brain
from medweave_steps.phantom.msd_writer import write_dataset
from medweave_steps.phantom.patient import Patient

MATRIX_SIZE = 32
SPACING_MM = 7.5
PREPARED_SHAPE = (32, 32, 16)
"""Of 20 slices, 16 are a multiple of 8."""


def training_job(folder: Path, number: int, **more: Any) -> dict[str, Any]:
    """Write `cohort` with so many cases, the first in the test split; return the inputs of a training of two ranks on it."""
    names = write_brains(folder / "cohort", number)
    (folder / "cohort" / "splits.json").write_text(json.dumps({"test": names[:1]}), encoding="utf-8")
    return {
        "cohort": {"class": "Directory", "path": "cohort"},
        "spacing_mm": [SPACING_MM] * 3,
        "volume_shape": list(PREPARED_SHAPE),
        "training_ranks": 2,
        "training_threads": 1,
        **more,
    }


def write_brains(folder: Path, number: int, *, seed: int = 1) -> list[str]:
    """Write images, labels, dataset.json and the card; return the names of the cases."""
    patients = [Patient(seed=seed, ordinal=place + 1, held_out=False, prefix="BRATS") for place in range(number)]
    for patient in patients:
        write_brain(BrainJob(patient=patient, matrix_size=MATRIX_SIZE, folder=folder))
    names = [patient.name for patient in patients]
    write_dataset(folder, names, DATA_SET)
    (folder / "cohort_card.json").write_text(json.dumps({"synthetic": True, "labels": LABELS}), encoding="utf-8")
    return names
