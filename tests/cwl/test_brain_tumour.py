"""The brain tumour pipeline under StreamFlow and cwltool: equal models, masks and figures, from four contrasts to a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread

from medweave_core.contracts.labels import Label
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.runtime.options import build_config
from medweave_steps.train.config import TrainConfig
from support.both_engines import digests, only, pseudonym_key, run_both, run_jobs, run_under_streamflow
from support.brain_cohort import training_job
from support.cwl_files import WORKFLOWS, load

FOLDER = WORKFLOWS / "brain-tumour-segmentation"
GOLDEN = {"reference_volume_mm3": 216_843.75, "baseline_dice": 0.948875, "dice": 0.060861, "lesions": 1}
"""Of the one test case; the tumour is that of the seed, the network has taken two steps."""
REGIONS = ["whole tumor", "tumor core", "enhancing tumor"]


@pytest.mark.parametrize("name", ["train", "search"])
def test_the_defaults_are_those_of_the_paper(name: str) -> None:
    inputs = load(FOLDER / f"{name}.cwl")["inputs"]
    assert inputs["fractions"]["default"] == [0.7, 0.15, 0.15]
    if name == "train":
        assert inputs["training_preset"]["default"] == "distmis"
        config = build_config(TrainConfig, {"training_set": Path(), "output": Path(), "preset": "distmis"})
        expected = {
            "epochs": 250, "learning_rate": 1e-4, "batch_size": 2, "network": "distmis-as-described", "norm": "batch",
            "patch_shape": (240, 240, 152), "window_shape": (240, 240, 152), "dice_smoothing": 0.1, "dice": "sample",
            "cross_entropy_weight": 0.0, "schedule": "constant", "scale_by_ranks": True,
        }  # fmt: skip
        assert {item: getattr(config, item) for item in expected} == expected


@pytest.mark.pipeline
def test_the_pipeline_gives_equal_results_under_both_engines(tmp_path: Path) -> None:
    job = training_job(tmp_path, 5, epochs=2, learning_rate=0.002, training_cache_mib=16)
    # The trainings that are only timed leave no model: one engine runs them.
    jobs = {"streamflow": job | {"timed_ranks": [1]}, "cwltool": job}
    for name, inputs in jobs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(inputs), encoding="utf-8")
    run_jobs(tmp_path, FOLDER / "train.cwl", {name: f"{name}.json" for name in jobs})
    result = {name: digests(tmp_path / f"by-{name}") for name in jobs}
    same = ("model.safetensors", "float32.bin", "metrics.json", "lesion_mask.nii.gz", "lesions.csv")
    chosen = {name: only(files, *same) for name, files in result.items()}
    assert chosen["streamflow"] == chosen["cwltool"]
    assert len(only(chosen["cwltool"], "lesion_mask.nii.gz")) == 1

    card = read_card(tmp_path / "by-cwltool" / "exported_model")
    assert (card.input.modality, card.input.channel_names) == ("MR", ("FLAIR", "T1w", "T1gd", "T2w"))
    assert card.labels == (Label(value=1, name="whole tumour"),)
    trained = card.training
    assert trained.items() >= {"world_size": 2, "batch_size": 4, "steps_done": 2, "dice": "sample"}.items()
    assert trained["learning_rate"] == pytest.approx(0.004), "the rate of one rank, times the ranks"

    metrics = json.loads((tmp_path / "by-cwltool" / "evaluation" / "metrics.json").read_text())
    (case,) = metrics["per_case"]
    assert {name: case[name] for name in GOLDEN} == pytest.approx(GOLDEN, rel=0.02)
    assert metrics["baseline"]["threshold_hu"] is None

    for name in jobs:
        summary = json.loads((tmp_path / f"by-{name}" / "report" / "summary.json").read_text())
        assert summary["title"] == "Brain tumour segmentation in MR"
        has_timed = ["scaling", "Ranks, time and speed-up"] in summary["sections"]
        assert has_timed == ("timed_ranks" in jobs[name])
    page = (tmp_path / "by-streamflow" / "report" / "fragment.html").read_text()
    assert "1 rank: 4 steps of 2 volumes or patches; 2 ranks: 2 steps of 4" in page
    assert page.count('<th scope="row" class="num">') >= 7, "the paper's numbers of ranks"
    assert "HU threshold" not in page, "MR has no HU"

    # The test case again, as a clinical one: without a mask, and by the model alone.
    shutil.rmtree(tmp_path / "cohort" / "labelsTr")
    (tmp_path / "cohort" / "splits.json").unlink()
    dataset = json.loads((tmp_path / "cohort" / "dataset.json").read_text())
    (tested,) = [pair["image"] for pair in dataset["training"] if case["case_id"] in pair["image"]]
    dataset |= {"training": [], "numTraining": 0, "test": [tested], "numTest": 1}
    (tmp_path / "cohort" / "dataset.json").write_text(json.dumps(dataset))
    (tmp_path / "new").mkdir()
    again = {
        "cohort": job["cohort"] | {"path": "../cohort"},
        "segmentation_model": {"class": "Directory", "path": "../by-cwltool/exported_model"},
    }
    masks = run_both(tmp_path / "new", FOLDER / "infer.cwl", again)
    assert list(only(masks["streamflow"], "lesion_mask.nii.gz").values()) == list(
        only(chosen["cwltool"], "lesion_mask.nii.gz").values()
    )
    assert masks["streamflow"].keys() == masks["cwltool"].keys()
    assert only(masks["streamflow"], "lesion_mask.nii.gz") == only(masks["cwltool"], "lesion_mask.nii.gz")


@pytest.mark.pipeline
def test_regions_from_identified_dicom_give_a_quantized_model_and_dicom_seg(tmp_path: Path) -> None:
    results = run_under_streamflow(tmp_path, FOLDER / "train.cwl", region_job(tmp_path))
    root = tmp_path / "by-streamflow"
    card = read_card(root / "accepted_model")
    assert [region.name for region in card.outputs] == REGIONS
    metrics = json.loads((root / "evaluation" / "metrics.json").read_text())
    assert [label["name"] for label in metrics["by_label"]] == REGIONS
    decision = json.loads((root / "gate_decision.json").read_text())
    assert [candidate["precision"] for candidate in decision["candidates"]] == ["int8"]
    masks = [path for path in results if path.endswith("lesion_mask.dcm")]
    assert masks, "from DICOM, masks are also DICOM SEG"
    patients = {str(dcmread(path).PatientID) for path in root.rglob("lesion_mask.dcm")}
    assert not patients & {str(dcmread(path).PatientID) for path in (tmp_path / "cohort").rglob("*.dcm")}, "pseudonyms"


def region_job(folder: Path) -> dict[str, Any]:
    """Write DICOM studies of brains; return the inputs of a training of overlapping regions on them, de-identified first."""
    words = ["phantom", "brain", "--format", "dicom", "--grid", "demo", "--cases", "5", "--held-out-cases", "1"]
    assert main([*words, "--output", str(folder / "cohort"), "--run-report", str(folder / "phantom.json")]) == 0
    for name in ("brain-labels.json", "demo-channels.json"):
        shutil.copy(FOLDER / "jobs" / name, folder)
    json_file = {"class": "File", "format": "http://edamontology.org/format_3464"}
    return {
        "cohort": {"class": "Directory", "path": "cohort"},
        "identified": True,
        "faces": "absent",
        "pseudonym_key": pseudonym_key(folder),
        "label_file": json_file | {"path": "brain-labels.json"},
        "channels": json_file | {"path": "demo-channels.json"},
        "merge_labels": [],
        "regions": ["whole tumor:1,2,3", "tumor core:2,3", "enhancing tumor:3"],
        "spacing_mm": [3.75, 3.75, 3.75],
        "training_preset": "demo",
        "training_steps": 2,
        "batch_size": 2,
        "volume_shape": [32, 32, 32],
        "training_threads": 1,
        "quantized": True,
        "gate_candidates": "int8:openvino",  # how fast int8 is at the moment must not choose the model
    }
