"""The classification and explanation of T1-weighted MR under StreamFlow and cwltool: equal models, probabilities and maps."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import nibabel
import pytest

from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from support.both_engines import only, pseudonym_key, run_both
from support.cwl_files import WORKFLOWS

FOLDER = WORKFLOWS / "alzheimer-classification"
TRAINING = {
    "groups": ["AD", "NC"], "spacing_mm": [4.0, 4.0, 4.0], "shape": [48, 56, 48], "fractions": [0.5, 0.25, 0.25],
    "training_width": 0.125, "training_steps": 2, "training_batch_size": 4, "training_threads": 1, "cases_per_batch": 2,
    "training_strategy": "hybrid", "training_ranks": 2, "training_stages": 2, "training_micro_batches": 2,
    "training_pipelined": True, "training_stage_memory_mib": 4000.0,
    "gate_candidates": "float32:openvino",  # how fast a runtime is at the moment must not choose it
}  # fmt: skip


def folder(path: str) -> dict[str, str]:
    return {"class": "Directory", "path": path}


@pytest.mark.pipeline
def test_scans_of_a_bids_cohort_are_de_identified_classified_and_explained_equally_under_both_engines(
    tmp_path: Path,
) -> None:
    words = ["--subjects", "24", "--grid", "demo", "--output", str(tmp_path / "cohort")]
    assert main(["phantom", "t1", *words, "--run-report", str(tmp_path / "phantom.json")]) == 0
    cohort = {"cohort": folder("cohort"), "brain_masks": "derivatives/brain"}
    key = pseudonym_key(tmp_path)
    results = run_both(
        tmp_path, FOLDER / "train.cwl", {**cohort, "pseudonym_key": key, "kept_columns": ["group", "mmse"], **TRAINING}
    )
    same = ("model.safetensors", "float32.bin", "metrics.json", "classifications.csv", "explanation_map.nii.gz")
    chosen = {name: only(files, *same) for name, files in results.items()}
    assert chosen["streamflow"] == chosen["cwltool"]

    root = tmp_path / "by-streamflow"
    card = read_card(root / "accepted_model")
    assert card.output_names == ("AD", "NC")
    assert (
        card.training.items()
        >= {"strategy": "hybrid", "stages": 2, "pipelined": True, "stage_memory_mib": 4000.0}.items()
    )
    assert (card.input.patch_shape, card.input.has_brain_mask) == ((48, 56, 48), True)
    metrics = json.loads((root / "evaluation" / "metrics.json").read_text())
    assert metrics["patients"] == 4
    assert {one["covariate"] for one in metrics["by_covariate"]} == {"sex", "age", "mmse"}
    records = [json.loads(path.read_text()) for path in sorted(root.rglob("explanations.json"))]
    cases = [case for record in records for case in record["cases"]]
    assert len(records) == 2, "one job per batch"
    assert {region["name"] for case in cases for region in case["regions"]} == {"ventricle", "hippocampus"}
    assert all(case["case_id"] not in path.name for case in cases for path in (tmp_path / "cohort").iterdir())
    maps = {path.parent.name: nibabel.load(path) for path in root.rglob("explanation_map.nii.gz")}
    assert maps.keys() == {case["case_id"] for case in cases}
    assert {image.shape for image in maps.values()} == {(96, 112, 96)}, "the source grid"
    page = (root / "report" / "fragment.html").read_text()
    assert "Sanity check" in page
    assert json.loads((root / "gate_decision.json").read_text())["candidates"] == []

    # The same scans again by the model alone, without the table of groups.
    shutil.copytree(tmp_path / "cohort", tmp_path / "new" / "cohort")
    (tmp_path / "new" / "cohort" / "participants.tsv").unlink()
    shutil.copy(tmp_path / key["path"], tmp_path / "new")
    again = {**cohort, "pseudonym_key": key, "classification_model": folder(str(root / "accepted_model"))}
    tables = run_both(tmp_path / "new", FOLDER / "infer.cwl", {**again, "cases_per_batch": 24})
    same = ("classifications.csv", "explanation_map.nii.gz")
    assert only(tables["streamflow"], *same) == only(tables["cwltool"], *same) != {}
    (table,) = (tmp_path / "new" / "by-cwltool").rglob("classifications.csv")
    tested = {row["case_id"]: row for path in root.rglob("classifications.csv") for row in rows_of(path)}
    assert {row["case_id"]: row for row in rows_of(table)}.items() >= tested.items(), "the batch does not matter"


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
