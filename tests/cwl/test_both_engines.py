"""The same workflow under StreamFlow and under cwltool, by their own commands: equal outputs, file by file."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from support import engine
from support.both_engines import only, run_both
from support.chest_cohort import write_dicom
from support.monai_bundle import write_bundle
from support.openvino_models import InputContract, write_tiny_model

MASKS = ("lesion_mask.nii.gz", "lesion_mask.dcm", "lesions.csv", "lesions_sr.dcm")


def key(folder: Path) -> dict[str, str]:
    """A key for pseudonyms: with keys of their own, two runs draw other patients into their splits."""
    (folder / "some.key").write_bytes(bytes(range(32)))
    return {"class": "File", "path": "some.key", "format": "http://edamontology.org/format_2333"}


@pytest.fixture
def fake_cohort(tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"  # cwltool refuses names with blanks, of inputs; not below them
    folder.mkdir()
    (folder / "slice 1.dcm").write_text("one")
    return folder


def test_training_pipeline_hands_the_same_to_every_step(tmp_path: Path, fake_cohort: Path) -> None:
    # The fake worker writes what it was given: options, and the content of inputs.
    job = {
        "cohort": {"class": "Directory", "path": fake_cohort.name},
        "spacing_mm": [1.5, 1.5, 2.0],
        "on_error": "skip",
        "gate_max_slowdown": 1.5,
    }
    found = run_both(tmp_path, "train.cwl", job, fakes=True)
    assert found["streamflow"] == found["cwltool"]
    assert '"--max-slowdown", "1.5"' in (tmp_path / "by-cwltool" / "gate_decision.json").read_text()
    assert set(found["cwltool"]) == {
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
    kept = {path.relative_to(run / "reports").as_posix() for path in (run / "reports").rglob("*.*") if path.is_file()}
    assert {"segment.0/run_report.json", "report/report/fragment.html"} <= kept


def test_distributed_training_takes_the_place_of_the_first_one(tmp_path: Path, fake_cohort: Path) -> None:
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
    found = run_both(tmp_path, "train.cwl", job, fakes=True)
    assert found["streamflow"] == found["cwltool"]
    (run,) = (tmp_path / "runs").glob("[!.]*")
    ends = [event for event in engine.valid_events(run / "events.jsonl") if event["type"] == "job.ended"]
    assert [event["job"] for event in ends[2:5]] == ["/train/0", "/train_distributed/0", "/export/0"]
    assert ends[0]["job"] == "/check/0", "a cohort that names nobody is not de-identified"
    assert not any("home/" in name for name in found["cwltool"])
    # The log that is delivered is the second training's, which was told of the first one's.
    told = (tmp_path / "by-cwltool" / "training_log" / "curves.json").read_text()
    assert told.startswith('curves.json ["train-distributed"')
    for option in ("--continues-log", "--trained-model", "--rounds", "--replicas", "--threads-per-replica", "in-order"):
        assert f'"{option}"' in told


@pytest.mark.pipeline
def test_inference_gives_bit_identical_masks(tmp_path: Path) -> None:
    write_dicom(tmp_path / "cohort", 3)
    shutil.rmtree(tmp_path / "cohort" / "ground-truth")
    contract = InputContract(
        spacing_mm=(4.0, 4.0, 4.0), window_hu=(-1000.0, 400.0), patch_shape=(16, 16, 16), patch_multiple=4
    )
    write_tiny_model(tmp_path / "model", input=contract)
    job = {
        "cohort": {"class": "Directory", "path": "cohort"},
        "pseudonym_key": key(tmp_path),
        "segmentation_model": {"class": "Directory", "path": "model"},
        "cases_per_batch": 2,
    }
    found = run_both(tmp_path, "infer.cwl", job)
    masks = {name: only(files, *MASKS) for name, files in found.items()}
    assert masks["streamflow"] == masks["cwltool"]
    assert len(masks["cwltool"]) == 3 * len(MASKS)
    assert {path.split("/")[0] for path in masks["cwltool"]} == {"segmentations-batch-000", "segmentations-batch-001"}
    assert holds_lesions(tmp_path / "by-streamflow")


@pytest.mark.pipeline
def test_training_gives_bit_identical_models_and_masks(tmp_path: Path) -> None:
    index = write_dicom(tmp_path / "cohort", 5)
    test_cases = [case.case_id for case in index.cases[:2]]
    (tmp_path / "cohort" / "splits.json").write_text(json.dumps({"test": test_cases}), encoding="utf-8")
    job = {
        "cohort": {"class": "Directory", "path": "cohort"},
        "pseudonym_key": key(tmp_path),
        "spacing_mm": [5.0, 5.0, 5.0],
        "training_steps": 3,
        "cases_per_batch": 1,
        "gate_max_slowdown": 1000,  # how fast int8 is at the moment must not choose the model
    }
    found = run_both(tmp_path, "train.cwl", job)
    same = ("model.safetensors", "float32.bin", "metrics.json", "lesion_mask.nii.gz", "lesions.csv")
    chosen = {name: only(files, *same) for name, files in found.items()}
    assert chosen["streamflow"] == chosen["cwltool"]
    assert len(only(chosen["cwltool"], "lesion_mask.nii.gz")) == 2
    assert "accepted_model/models/model.safetensors" in chosen["cwltool"]
    # A DICOM SEG names its model by the digest of the card, which tells how many seconds the training took; its frames must
    # not differ.
    segs = sorted(path.relative_to(tmp_path / "by-cwltool") for path in (tmp_path / "by-cwltool").rglob("*_mask.dcm"))
    assert len(segs) == 2
    for path in segs:
        assert frames(tmp_path / "by-cwltool" / path) == frames(tmp_path / "by-streamflow" / path)


@pytest.mark.pipeline
def test_a_bundle_that_says_nothing_is_segmented_with_by_what_the_job_says(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", preprocessing=[], inferer={"_target_": "SimpleInferer"})
    write_dicom(tmp_path / "cohort", 2)
    shutil.rmtree(tmp_path / "cohort" / "ground-truth")
    said = {"spacing_mm": [4.0, 4.0, 5.0], "window_hu": [-900.0, 300.0], "patch_shape": [16, 16, 8], "crop": "lungs"}
    job = {
        "monai_bundle": {"class": "Directory", "path": "bundle"},
        "cohort": {"class": "Directory", "path": "cohort"},
        "pseudonym_key": key(tmp_path),
        **said,
        "labels": "lung-nodule",  # the Bundle has no codes, without which there is no DICOM output
        # Random weights: about the highest probability they give, and the largest of the many blobs.
        "threshold": 0.55,
        "min_volume_mm3": 5000.0,
    }
    found = run_both(tmp_path, Path(__file__).with_name("bring-your-own-model.cwl"), job)
    card = json.loads((tmp_path / "by-cwltool/trained_model/model_card.json").read_text())
    assert {name: card["input"][name] for name in said} == said
    assert (card["postprocessing"]["threshold"], card["postprocessing"]["min_volume_mm3"]) == (0.55, 5000.0)
    assert found["streamflow"] == found["cwltool"]
    assert len(only(found["cwltool"], *MASKS)) == 2 * len(MASKS)
    assert holds_lesions(tmp_path / "by-cwltool")


def frames(path: Path) -> tuple[str, list[str]]:
    """Digest of all voxels of a DICOM SEG, and the source images that its frames refer to."""
    import pydicom

    dataset = pydicom.dcmread(path)
    (series,) = dataset.ReferencedSeriesSequence
    images = [image.ReferencedSOPInstanceUID for image in series.ReferencedInstanceSequence]
    return hashlib.sha256(dataset.PixelData).hexdigest(), images


def holds_lesions(folder: Path) -> bool:
    """True where a mask is not empty: equal empty masks would prove nothing."""
    import nibabel

    return any(nibabel.load(path).get_fdata().any() for path in folder.rglob("*.nii.gz"))
