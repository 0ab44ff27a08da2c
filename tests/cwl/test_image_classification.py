"""The classification of images under StreamFlow and cwltool: equal models, probabilities and figures, from images to a report."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pydicom
import pytest

from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.phantom.xray_cohort import CLASSES as FINDINGS
from support.both_engines import only, pseudonym_key, run_both, run_under_streamflow
from support.cwl_files import WORKFLOWS

FOLDER = WORKFLOWS / "image-classification"
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
TRAINING = {
    "identified": False, "image_size": [32, 32], "training_network": "mobilenet", "training_width": 0.25, "training_steps": 2,
    "training_batch_size": 4, "training_threads": 1, "fractions": [0.8, 0.2, 0.0],
    "gate_candidates": "int8:openvino",  # how fast int8 is at the moment must not choose the model
}  # fmt: skip
NETWORK = """\
import torch

class Tiny(torch.nn.Sequential):
    def __init__(self, *, in_channels, out_channels, input_shape):
        columns, rows, slices = input_shape
        super().__init__(
            torch.nn.Conv3d(in_channels, 3, (3, 3, 1), padding=(1, 1, 0)), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(3 * columns * rows * slices, out_channels),
        )
"""
OWN_NETWORK = {
    "training_network": "my_network:Tiny", "training_width": None, "allow_code": True,
    "training_network_code": {"class": "File", "path": "my_network.py", "format": "http://edamontology.org/format_3996"},
}  # fmt: skip


def phantom(folder: Path, anatomy: str, cases: int, held_out: int) -> Path:
    words = ["--cases", str(cases), "--held-out-cases", str(held_out), "--image-size", "32", "--output", str(folder)]
    assert main(["phantom", anatomy, *words, "--run-report", str(folder.with_suffix(".json"))]) == 0
    return folder


@pytest.mark.pipeline
def test_the_pipeline_gives_equal_results_under_both_engines(tmp_path: Path) -> None:
    phantom(tmp_path / "cohort", "skin", 32, 8)
    cohort = {"class": "Directory", "path": "cohort"}
    results = run_both(tmp_path, FOLDER / "train.cwl", {"cohort": cohort, **TRAINING, "cases_per_batch": 8})
    same = ("model.safetensors", "float32.bin", "metrics.json", "classifications.csv", "per_case.csv", "per_class.csv")
    chosen = {name: only(files, *same) for name, files in results.items()}
    assert chosen["streamflow"] == chosen["cwltool"]
    assert len(only(chosen["cwltool"], "classifications.csv")) > 1, "one table per batch"

    root = tmp_path / "by-cwltool"
    assert tuple(one.name for one in read_card(root / "accepted_model").classes) == CLASSES
    metrics = json.loads((root / "evaluation" / "metrics.json").read_text())
    assert (metrics["patients"], metrics["is_multi_label"]) == (8, False)
    assert metrics["baseline"]["rule"] == "color histogram"
    decision = json.loads((root / "gate_decision.json").read_text())
    assert [candidate["precision"] for candidate in decision["candidates"]] == ["int8"]
    summary = json.loads((root / "report" / "summary.json").read_text())
    assert summary["title"] == "Classification of photographs into 8 classes"
    page = (root / "report" / "fragment.html").read_text()
    for heading in (
        "Class by class",
        "Confusion matrix",
        "Calibration",
        "Worst cases",
        "Which model and runtime were accepted",
    ):
        assert heading in page

    # The same photographs again, as new ones: without table and split, and by the model alone.
    shutil.copytree(tmp_path / "cohort", tmp_path / "new" / "cohort")
    for name in ("splits.json", "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"):
        (tmp_path / "new" / "cohort" / name).unlink()
    again = {"cohort": cohort, "identified": False, "classification_model": model_of(root)}
    tables = run_both(tmp_path / "new", FOLDER / "infer.cwl", again)
    assert tables["streamflow"] == tables["cwltool"]
    (table,) = (tmp_path / "new" / "by-cwltool").rglob("classifications.csv")
    tested = {row["case_id"]: row for path in root.rglob("classifications.csv") for row in rows_of(path)}
    assert {row["case_id"]: row for row in rows_of(table)}.items() >= tested.items(), "the batch does not matter"


@pytest.mark.pipeline
def test_identified_radiographs_and_code_of_the_user_give_a_model_and_structured_reports(tmp_path: Path) -> None:
    """Radiographs with findings, and a network whose code travels as a file."""
    phantom(tmp_path / "cohort", "xray", 24, 4)
    (tmp_path / "my_network.py").write_text(NETWORK)
    own = {"identified": True, "pseudonym_key": pseudonym_key(tmp_path), **OWN_NETWORK}
    job = {"cohort": {"class": "Directory", "path": "cohort"}, **TRAINING, **own}
    results = run_under_streamflow(tmp_path, FOLDER / "train.cwl", job)
    assert len(only(results, "model.safetensors", "metrics.json", "classifications.csv", "my_network.py")) == 4
    root = tmp_path / "by-streamflow"
    metrics = json.loads((root / "evaluation" / "metrics.json").read_text())
    assert metrics["is_multi_label"]
    assert "Decisions of each class" in (root / "report" / "fragment.html").read_text()
    assert (root / "home" / "way_back.json").is_file(), "the map from pseudonyms to patients"
    card = json.loads((root / "accepted_model" / "model_card.json").read_text())
    assert card["architecture"]["code"]["file"] == "scripts/my_network.py"
    found = {row["case_id"] for path in root.rglob("classifications.csv") for row in rows_of(path) if row["predicted"]}
    reports = {path.parent.name: pydicom.dcmread(path) for path in root.rglob("classification_sr.dcm")}
    assert reports.keys() == found != set(), "a structured report for each image with a finding"
    codes = {
        element.value for report in reports.values() for element in report.iterall() if element.keyword == "CodeValue"
    }
    assert codes & {one.code.value for one in FINDINGS if one.code}, (
        "the codes of the cohort card, which deidentify keeps"
    )


def model_of(root: Path) -> dict[str, Any]:
    return {"class": "Directory", "path": str(root / "accepted_model")}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
