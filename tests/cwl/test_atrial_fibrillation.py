"""The classification of heart rhythms under StreamFlow: from recordings to a model and a report, then new recordings."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from medweave_steps.io.cohort.reference import REFERENCE_FILE
from medweave_steps.io.model.folder import read_card
from support.both_engines import run_under_streamflow
from support.cwl_files import WORKFLOWS
from support.recordings import ecg_cohort

FOLDER = WORKFLOWS / "atrial-fibrillation"


def rows_of(folder: Path, name: str = "classifications.csv") -> dict[str, dict[str, str]]:
    """Return the rows of the tables of all batches, by their first column; each is in one batch only."""
    tables = [path.open(encoding="utf-8", newline="") for path in folder.rglob(name)]
    rows = [row for table in tables for row in csv.DictReader(table)]
    by_id = {next(iter(row.values())): row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


@pytest.mark.pipeline
def test_recordings_give_a_model_that_classifies_new_recordings(tmp_path: Path) -> None:
    labels = {f"A{number:05d}": rhythm for number, rhythm in enumerate("NNNNAAAAOOOO", start=1)}
    cohort = ecg_cohort(tmp_path / "cohort", labels)
    job = {
        "cohort": {"class": "Directory", "path": "cohort"}, "fractions": [0.5, 0.25, 0.25], "training_width": 0.0625,
        "training_steps": 2, "training_epoch_steps": 2, "training_batch_size": 2, "training_threads": 1,
        "gate_candidates": "float32:openvino",
    }  # fmt: skip
    run_under_streamflow(tmp_path, FOLDER / "train.cwl", job)
    root = tmp_path / "by-streamflow"
    assert {one.name for one in read_card(root / "accepted_model").classes} == {"N", "A", "O"}
    metrics = json.loads((root / "evaluation" / "metrics.json").read_text())
    tested = rows_of(root)
    assert (metrics["patients"], metrics["cases"]) == (3, len(tested))
    recordings = metrics["by_recording"]
    assert (recordings["recordings"], recordings["scored_classes"]) == (3, ["N", "A", "O"])
    assert json.loads((root / "report" / "summary.json").read_text())["title"]

    # The same recordings again, as new ones, and by the model alone; with the same key they have the same pseudonyms.
    (cohort / REFERENCE_FILE).unlink()
    (key,) = root.rglob("*.key")
    again = {
        "cohort": {"class": "Directory", "path": str(cohort)}, "cases_per_batch": 8,
        "classification_model": {"class": "Directory", "path": str(root / "accepted_model")},
        "pseudonym_key": {"class": "File", "path": str(key), "format": "http://edamontology.org/format_2333"},
    }  # fmt: skip
    (tmp_path / "new").mkdir()
    run_under_streamflow(tmp_path / "new", FOLDER / "infer.cwl", again)
    new = rows_of(tmp_path / "new" / "by-streamflow")
    assert len(new) > len(tested)
    assert new.items() >= tested.items(), "the batch does not matter"

    by_recording = rows_of(tmp_path / "new" / "by-streamflow", "recordings.csv")
    assert (len(by_recording), sum(int(row["samples"]) for row in by_recording.values())) == (len(labels), len(new))
    evaluated = {one["recording"]: one["predicted"] for one in recordings["per_recording"]}
    assert {name: by_recording[name]["predicted"] for name in evaluated} == evaluated
