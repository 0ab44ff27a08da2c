"""What steps of commit 4c21a2f left on disk, read by today's steps."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest

from support.formats import STEPS, step

pytestmark = pytest.mark.slow

TRAINING = ("--training-set", STEPS / "prepared" / "training_set")
BATCH, DICOM_BATCH = (STEPS / name / "inference_batches" / "batch-000" for name in ("prepared", "dicom_prepared"))
TRAIN = shlex.split(
    "--batch-size 2 --patch-shape 8 8 8 --validation-cases 0 --data-workers 0 --device cpu --precision float32 --seed 3"
)
LENGTH = shlex.split(
    "--steps 60 --learning-rate 0.02 --channels 4 8 --strides 2 --window-shape 24 20 16 --epoch-steps 20 "
    "--validation-interval 1"
)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def old_report(name: str) -> Any:
    return read(STEPS / "reports" / f"{name}.json")


def same_arrays(old: Path, new: Path) -> None:
    """Assert that every array of the old folder is in the new one, bit by bit."""
    paths = sorted(old.rglob("*.npy"))
    assert paths
    for path in paths:
        np.testing.assert_array_equal(np.load(path), np.load(new / path.relative_to(old)), err_msg=path.name)


def test_key_of_pseudonyms_gives_the_same_pseudonyms(tmp_path: Path) -> None:
    key = tmp_path / "pseudonym.key"
    shutil.copyfile(STEPS / "deidentified-home" / "pseudonym.key", key)
    key.chmod(0o600)
    words = ("--cohort", STEPS / "identified", "--output", tmp_path / "out", "--home", tmp_path / "home", "--key", key)
    step("deidentify", tmp_path / "report.json", *words)
    assert read(tmp_path / "home" / "way_back.json") == read(STEPS / "deidentified-home" / "way_back.json")
    old = {path.relative_to(STEPS / "deidentified") for path in (STEPS / "deidentified").rglob("*.dcm")}
    assert {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.dcm")} == old
    for path in old:
        headers = [pydicom.dcmread(folder / path) for folder in (STEPS / "deidentified", tmp_path / "out")]
        identities = [
            (header.PatientID, header.SOPInstanceUID, header.StudyDate, header.PixelData) for header in headers
        ]
        assert identities[0] == identities[1]


@pytest.mark.parametrize("name", ["cohort", "deidentified"])
def test_cohort_and_its_card_are_checked(tmp_path: Path, name: str) -> None:
    step("check", tmp_path / "report.json", "--cohort", STEPS / name, "--output", tmp_path / "index.json")
    old = read(STEPS / {"cohort": "cohort_index.json", "deidentified": "dicom_index.json"}[name])
    new = read(tmp_path / "index.json")
    assert new["synthetic"] == old["synthetic"]
    assert [case["case_id"] for case in new["cases"]] == [case["case_id"] for case in old["cases"]]


def test_cohort_index_is_preprocessed(tmp_path: Path) -> None:
    words = ("--cohort", STEPS / "cohort", "--cohort-index", STEPS / "cohort_index.json", "--crop", "none")
    shares = ("--fractions", "0.5", "0.25", "0.25", "--purpose", "training")
    step("preprocess", tmp_path / "report.json", *words, *shares, "--output", tmp_path / "prepared")
    same_arrays(STEPS / "prepared", tmp_path / "prepared")
    old, new = (read(folder / "training_set" / "cohort.json") for folder in (STEPS / "prepared", tmp_path / "prepared"))
    assert [(case["case_id"], case["split"]) for case in new["cases"]] == [
        (case["case_id"], case["split"]) for case in old["cases"]
    ]


def test_dicom_index_is_preprocessed(tmp_path: Path) -> None:
    words = ("--cohort", STEPS / "deidentified", "--cohort-index", STEPS / "dicom_index.json", "--crop", "none")
    step("preprocess", tmp_path / "report.json", *words, "--purpose", "inference", "--output", tmp_path / "prepared")
    same_arrays(STEPS / "dicom_prepared", tmp_path / "prepared")


def test_checkpoint_of_train_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*TRAINING, *TRAIN, *LENGTH, "--resume-from", STEPS / "checkpoints" / "train")
    log = ("--training-log", tmp_path / "log")
    report = step("train", tmp_path / "report.json", *words, *log, "--output", tmp_path / "trained")
    # Points before the checkpoint come from it, digit by digit; the last epoch is computed here.
    old, new = (read(folder / "curves.json") for folder in (STEPS / "training_log", tmp_path / "log"))
    assert [point for point in new if point["step"] <= 40] == [point for point in old if point["step"] <= 40]
    assert new[-1]["step"] == 60
    assert report["results"]["metrics"]["validation_dice"] > 0.8
    output = capsys.readouterr().err
    assert "epoch 3/3" in output
    assert "epoch 1/3" not in output


def test_checkpoint_of_train_distributed_is_resumed(tmp_path: Path) -> None:
    shutil.copyfile(STEPS / "checkpoints" / "rounds" / "checkpoint-before.pt", tmp_path / "checkpoint.pt")
    rounds = ("--rounds", "3", "--steps-per-round", "2", "--replicas", "2", "--resume-from", tmp_path / "checkpoint.pt")
    model = ("--trained-model", STEPS / "trained", "--continues-log", STEPS / "training_log")
    output = ("--output", tmp_path / "distributed", "--training-log", tmp_path / "log")
    report = step("train-distributed", tmp_path / "report.json", *TRAINING, *rounds, *TRAIN, *model, *output)
    old = read(STEPS / "distributed_log" / "curves.json")
    points = read(tmp_path / "log" / "curves.json")
    assert [(point["step"], point.keys()) for point in points] == [(point["step"], point.keys()) for point in old]
    assert len(report["results"]["rounds"]) == len(old_report("train-distributed")["results"]["rounds"])


def test_trained_model_is_exported(tmp_path: Path) -> None:
    words = ("--trained-model", STEPS / "trained", "--output", tmp_path / "exported", "--parity-windows", "1")
    step("export", tmp_path / "report.json", *words)
    old, new = (read(folder / "model_card.json") for folder in (STEPS / "exported", tmp_path / "exported"))
    assert new["files"].keys() == old["files"].keys()
    assert new["architecture"] == old["architecture"]


def test_exported_model_and_candidate_pass_the_gate(tmp_path: Path) -> None:
    words = ("--exported-model", STEPS / "exported", "--candidates", STEPS / "int8", *TRAINING, "--test-batches", BATCH)
    output = ("--output", tmp_path / "accepted", "--decision", tmp_path / "decision.json", "--pairs", "2")
    step("gate", tmp_path / "report.json", *words, *output)
    old, new = read(STEPS / "gate_decision.json"), read(tmp_path / "decision.json")
    assert [candidate["name"] for candidate in new["candidates"]] == ["float32", "int8"]  # float32 with ONNX Runtime
    assert new["float32_validation"]["dice_mean"] == pytest.approx(old["float32_validation"]["dice_mean"], abs=0.02)


@pytest.mark.parametrize(("batch", "old"), [(BATCH, "segmentations"), (DICOM_BATCH, "dicom_segmentations")])
def test_accepted_model_and_batch_are_segmented(tmp_path: Path, batch: Path, old: str) -> None:
    words = ("--segmentation-model", STEPS / "accepted", "--case-batch", batch, "--output", tmp_path / "out")
    step("segment", tmp_path / "report.json", *words)
    masks = sorted((STEPS / old).glob("*/lesion_mask.nii.gz"))
    assert masks
    for path in masks:
        before, now = (nibabel.load(mask) for mask in (path, tmp_path / "out" / path.relative_to(STEPS / old)))
        assert np.allclose(before.affine, now.affine)
        voxels = [np.asarray(image.dataobj) > 0 for image in (before, now)]
        assert voxels[0].any()
        # Another processor rounds otherwise: a voxel at the edge may differ.
        assert (voxels[0] != voxels[1]).sum() <= 0.05 * voxels[0].sum()
    # Labels of old model cards have no DICOM codes; DICOM SEG and SR need them since #31.
    names = {path.relative_to(STEPS / old) for path in (STEPS / old).rglob("*") if path.suffix != ".dcm"}
    assert names <= {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*")}


def test_segmentations_are_evaluated(tmp_path: Path) -> None:
    words = (
        "--cohort",
        STEPS / "cohort",
        "--cohort-index",
        STEPS / "cohort_index.json",
        "--bootstrap-resamples",
        "100",
    )
    masks = ("--segmentations", STEPS / "segmentations", "--case-batches", BATCH, "--output", tmp_path / "out")
    step("evaluate", tmp_path / "report.json", *words, *masks)
    old, new = (read(folder / "metrics.json") for folder in (STEPS / "evaluation", tmp_path / "out"))
    for name in ("patients", "lesions", "dice_mean", "lesion_sensitivity_6mm", "false_positives_per_scan"):
        assert new[name] == pytest.approx(old[name]), name
    tables = [(folder / "per_case.csv").open(newline="") for folder in (STEPS / "evaluation", tmp_path / "out")]
    # The baseline has since been mended for volumes that were not cropped to the lungs.
    before, now = (
        {name: value for name, value in next(csv.DictReader(table)).items() if not name.startswith("baseline_")}
        for table in tables
    )
    assert before.items() <= now.items()


def test_evaluation_and_run_reports_become_a_report(tmp_path: Path) -> None:
    names = ("check", "preprocess", "train", "export", "quantize", "gate", "segment", "evaluate")
    reports = [STEPS / "reports" / f"{name}.json" for name in names]
    words = ("--evaluation", STEPS / "evaluation", "--segmentations", STEPS / "segmentations", "--case-batches", BATCH)
    more = ("--training-log", STEPS / "training_log", "--run-reports", *reports, "--max-overlays", "1")
    step("report", tmp_path / "report.json", *words, *more, "--output", tmp_path / "out")
    before, now = (
        (folder / "fragment.html").read_text(encoding="utf-8") for folder in (STEPS / "report", tmp_path / "out")
    )
    titles = [set(re.findall(r"<h[123][^>]*>([^<]+)<", text)) for text in (before, now)]
    assert len(titles[0]) > 3
    # The page names the label since #31; the gate's headings name the runtime since #36.
    changed = {"Which precision was accepted", "Lung nodule segmentation in chest CT"}
    assert {title for title in titles[0] - titles[1] if not title.startswith("Why int8 was")} == changed
    old, new = (read(folder / "summary.json") for folder in (STEPS / "report", tmp_path / "out"))
    for name in ("patients", "lesions", "synthetic", "figures"):
        assert new[name] == old[name], name


def test_results_of_trials_are_collected(tmp_path: Path) -> None:
    words = ("--part", "collect", "--grid", STEPS / "grid.json", "--results", STEPS / "trial_0", STEPS / "trial_1")
    output = ("--output", tmp_path / "search", "--best-model", tmp_path / "best")
    step("search", tmp_path / "report.json", *words, *output)
    old, new = (read(folder / "search.json") for folder in (STEPS / "search", tmp_path / "search"))
    assert [row["trial_id"] for row in new["rows"]] == [row["trial_id"] for row in old["rows"]]
    weights = [folder / "models" / "model.safetensors" for folder in (STEPS / "best_model", tmp_path / "best")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_planned_trial_is_trained(tmp_path: Path) -> None:
    words = ("--part", "trial", "--trial", STEPS / "trials" / "trial-0000.json", *TRAINING)
    step("search", tmp_path / "report.json", *words, "--output", tmp_path / "trial")
    (old,), (new,) = (read(folder / "search.json")["rows"] for folder in (STEPS / "trial_0", tmp_path / "trial"))
    assert (new["trial_id"], new["state"]) == (old["trial_id"], "completed")
