"""The same workflow under StreamFlow and under cwltool, by their own commands: equal outputs, file by file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from medweave_steps.runtime.imports import require
from support import engine
from support.both_engines import only, pseudonym_key, run_both
from support.chest_cohort import write_dicom
from support.monai_bundle import write_bundle

MASKS = ("lesion_mask.nii.gz", "lesion_mask.dcm", "lesions.csv", "lesions_sr.dcm")


@pytest.fixture
def fake_cohort(tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"  # cwltool refuses names with blanks, of inputs; not below them
    folder.mkdir()
    (folder / "slice 1.dcm").write_text("one")
    return folder


def test_training_pipeline_gives_equal_inputs_to_every_step(tmp_path: Path, fake_cohort: Path) -> None:
    # The fake worker writes its options and the content of its inputs.
    job = {
        "cohort": {"class": "Directory", "path": fake_cohort.name},
        "spacing_mm": [1.5, 1.5, 2.0],
        "on_error": "skip",
        "training_strategy": "local-sgd",
        "training_ranks": 2,
        "training_sync_interval": 2,
        "gate_max_slowdown": 1.5,
    }
    result = run_both(tmp_path, "train.cwl", job, fakes=True)
    assert result["streamflow"] == result["cwltool"]
    assert '"--max-slowdown", "1.5"' in (tmp_path / "by-cwltool" / "gate_decision.json").read_text()
    train_words = (tmp_path / "by-cwltool" / "training_log" / "curves.json").read_text()
    for words in ('"--strategy", "local-sgd"', '"--ranks", "2"', '"--sync-interval", "2"'):
        assert words in train_words
    assert set(result["cwltool"]) == {
        "accepted_model/model_card.json",
        "evaluation/metrics.json",
        "gate_decision.json",
        "home/way_back.json",
        "report/fragment.html",
        "report/summary.json",
        "training_log/curves.json",
        *(f"segmentations-batch-{n:03d}/case-1/lesion_mask.{kind}" for n in (0, 1) for kind in ("dcm", "nii.gz")),
        *(f"segmentations-batch-{n:03d}/segmentations.json" for n in (0, 1)),
    }
    (run,) = (tmp_path / "runs").glob("[!.]*")
    ends = [event for event in engine.valid_events(run / "events.jsonl") if event["type"] == "job.ended"]
    assert {event["data"]["state"] for event in ends} == {"completed"}
    assert [event["job"] for event in ends[:4]] == ["/deidentify/0", "/check/0", "/preprocess/0", "/train/0"]
    assert {event["job"] for event in ends if event["step"] == "/segment"} == {"/segment/0.0", "/segment/0.1"}
    retained = {
        path.relative_to(run / "reports").as_posix() for path in (run / "reports").rglob("*.*") if path.is_file()
    }
    assert {"segment.0/run_report.json", "report/report/fragment.html"} <= retained


def test_distributed_training_replaces_single_training(tmp_path: Path, fake_cohort: Path) -> None:
    job = {
        "cohort": {"class": "Directory", "path": fake_cohort.name},
        "identified": False,
        "training_strategy": "ddp",
        "training_ranks": 2,
        "training_threads": 1,
        "distributed": True,
        "distributed_rounds": 3,
        "distributed_replicas": 2,
        "distributed_engine": "in-order",
    }
    result = run_both(tmp_path, "train.cwl", job, fakes=True)
    assert result["streamflow"] == result["cwltool"]
    (run,) = (tmp_path / "runs").glob("[!.]*")
    ends = [event for event in engine.valid_events(run / "events.jsonl") if event["type"] == "job.ended"]
    assert [event["job"] for event in ends[2:5]] == ["/train/0", "/train_distributed/0", "/export/0"]
    assert ends[0]["job"] == "/check/0", "a cohort without identifiers is not de-identified"
    assert not any("home/" in name for name in result["cwltool"])
    # The delivered log is that of the second training, which continues the first one's.
    message = (tmp_path / "by-cwltool" / "training_log" / "curves.json").read_text()
    assert message.startswith('curves.json ["train-distributed"')
    for option in ("--continues-log", "--trained-model", "--rounds", "--replicas", "--threads-per-replica", "in-order"):
        assert f'"{option}"' in message


def test_a_pruned_model_is_exported_quantized_and_a_candidate_of_gate(tmp_path: Path, fake_cohort: Path) -> None:
    job = {
        "cohort": {"class": "Directory", "path": fake_cohort.name},
        "identified": False,
        "pruned": True,
        "pruning_tolerance": 0.1,
    }
    result = run_both(tmp_path, "train.cwl", job, fakes=True)
    assert result["streamflow"] == result["cwltool"]
    (run,) = (tmp_path / "runs").glob("[!.]*")
    jobs = [event["job"] for event in engine.valid_events(run / "events.jsonl") if event["type"] == "job.ended"]
    assert (
        jobs.index("/prune/0")
        < jobs.index("/export_pruned/0")
        < jobs.index("/quantize_pruned/0")
        < jobs.index("/gate/0")
    )
    words = json.loads((tmp_path / "by-cwltool" / "gate_decision.json").read_text().partition(" ")[2])
    assert words[words.index("--candidates") + 4].startswith("--"), "three candidates"


@pytest.mark.pipeline
def test_inference_with_a_bundle_gives_bit_identical_masks(tmp_path: Path) -> None:
    """The Bundle describes neither preprocessing nor windows; the model card takes both from the job."""
    # As the verbs import it: MONAI alone would import matplotlib and pandas, too.
    require("monai.bundle", extra="export")
    write_bundle(tmp_path / "bundle", preprocessing=[], inferer={"_target_": "SimpleInferer"})
    write_dicom(tmp_path / "cohort", 2, coarse=True)
    shutil.rmtree(tmp_path / "cohort" / "ground-truth")
    messages = {
        "spacing_mm": [8.0, 8.0, 10.0],
        "window_hu": [-900.0, 300.0],
        "patch_shape": [16, 16, 8],
        "crop": "lungs",
    }
    job = {
        "monai_bundle": {"class": "Directory", "path": "bundle"},
        "cohort": {"class": "Directory", "path": "cohort"},
        "pseudonym_key": pseudonym_key(tmp_path),
        "cases_per_batch": 1,
        **messages,
        "labels": "lung-nodule",  # the Bundle has no codes, without which there is no DICOM output
        # Random weights: about the highest probability they give, and the largest of the many blobs.
        "threshold": 0.55,
        "min_volume_mm3": 5000.0,
    }
    result = run_both(tmp_path, Path(__file__).with_name("bring-your-own-model.cwl"), job)
    card = json.loads((tmp_path / "by-cwltool/trained_model/model_card.json").read_text())
    assert {name: card["input"][name] for name in messages} == messages
    assert (card["postprocessing"]["threshold"], card["postprocessing"]["min_volume_mm3"]) == (0.55, 5000.0)
    assert result["streamflow"] == result["cwltool"]
    masks = only(result["cwltool"], *MASKS)
    assert len(masks) == 2 * len(MASKS)
    assert {path.split("/")[0] for path in masks} == {"segmentations-batch-000", "segmentations-batch-001"}
    assert holds_lesions(tmp_path / "by-cwltool")


def holds_lesions(folder: Path) -> bool:
    """Return True if a mask is not empty: equal empty masks would prove nothing."""
    import nibabel

    return any(nibabel.load(path).get_fdata().any() for path in folder.rglob("*.nii.gz"))
