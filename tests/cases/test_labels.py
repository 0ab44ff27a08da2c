"""Cases F2, F4 and F15: labels that were merged, named after another organ, or lost where segments overlap."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest

from cases.chest import chest_hu, chest_RAS, ct_series, nodule_mask, save_nifti, save_series
from medweave_core.contracts import codec
from medweave_core.contracts.model import Postprocessing
from medweave_steps.cli import main
from support.dicom_builder import segmentation
from support.openvino_models import write_tiny_model

Seen = Callable[[object], None]


def step(folder: Path, verb: str, *words: object) -> int:
    """Run a verb in this process with one thread."""
    report = folder / f"{verb}.json"
    return main([verb, *map(str, words), "--num-threads", "1", "--run-report", str(report)])


def first_error(capsys: pytest.CaptureFixture[str], verb: str) -> str:
    """Return the four lines of the error."""
    lines = capsys.readouterr().err.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(f"medweave-step {verb}:"))
    return " ".join(line.strip() for line in lines[start : start + 4])


# --- F2


def two_labels(folder: Path, *, num_cases: int = 2) -> Path:
    """Write an MSD data set whose masks hold 1 (lung) and 2 (cancer)."""
    training = []
    for case in range(num_cases):
        hu, lungs, nodule = chest_RAS(case, (48, 48, 12))
        names = (f"imagesTr/c_{case}.nii.gz", f"labelsTr/c_{case}.nii.gz")
        save_nifti(folder / names[0], hu)
        save_nifti(folder / names[1], np.where(nodule, 2, lungs).astype(np.uint8))
        training.append({"image": f"./{names[0]}", "label": f"./{names[1]}"})
    labels = {"0": "background", "1": "lung", "2": "cancer"}
    dataset = {"modality": {"0": "CT"}, "labels": labels, "training": training, "test": []}
    (folder / "dataset.json").write_text(json.dumps(dataset))
    return folder


@pytest.mark.case(
    "multilabel",
    expected="two labels with their own lesions; exit code 65 where one is not declared; merged only on request",
)
def test_two_labels_stay_apart_and_are_merged_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: Seen
) -> None:
    cohort = two_labels(tmp_path / "cohort")
    assert step(tmp_path, "check", "--cohort", cohort, "--output", tmp_path / "index.json") == 0
    labels = json.loads((tmp_path / "index.json").read_text())["labels"]
    seen(f"labels {', '.join(label['name'] for label in labels)}")
    assert [label["name"] for label in labels] == ["lung", "cancer"]
    (tmp_path / "index.json").unlink()
    dataset = json.loads((cohort / "dataset.json").read_text())
    (cohort / "dataset.json").write_text(json.dumps(dataset | {"labels": {}}))
    code = step(tmp_path, "check", "--cohort", cohort, "--output", tmp_path / "index.json")
    error = first_error(capsys, "check")
    seen(f"without declaration exit code {code}: {error}")
    assert code == 65
    assert "value 1 in 2 masks, value 2 in 2 masks" in error
    assert "--merge-labels 1,2:NAME" in error
    assert not (tmp_path / "index.json").exists()
    (cohort / "dataset.json").write_text(json.dumps(dataset))
    words = ("--cohort", cohort, "--output", tmp_path / "index.json", "--merge-labels", "0,1:background")
    assert step(tmp_path, "check", *words) == 0
    assert json.loads((tmp_path / "check.json").read_text())["results"]["num_lesions"] == 2, "one nodule in each"


# --- F4


def model_for(folder: Path, **changes: object) -> Path:
    """Write a model of bright lesions with a changed card."""
    write_tiny_model(folder, postprocessing=Postprocessing(threshold=0.5, overlap=0.25), **changes)
    return folder


def segmented_chest(folder: Path, model: Path, *, body_part: str = "CHEST") -> Path:
    """Check, prepare and segment one chest; return the folder of its case."""
    slices = ct_series(chest_hu(16, 48), pixel_mm=7.2)
    for dataset in slices:
        dataset.BodyPartExamined = body_part
    cohort = save_series(folder / "cohort", slices)
    assert step(folder, "check", "--cohort", cohort, "--output", folder / "index.json") == 0
    words = ("--cohort", cohort, "--cohort-index", folder / "index.json", "--segmentation-model", model)
    assert step(folder, "preprocess", *words, "--purpose", "inference", "--output", folder / "prepared") == 0
    batch = folder / "prepared/inference_batches/batch-000"
    words = ("--segmentation-model", model, "--case-batch", batch, "--output", folder / "out")
    assert step(folder, "segment", *words) == 0
    (case,) = (path for path in (folder / "out").iterdir() if path.is_dir())
    return case


@pytest.mark.case(
    "other_organ", expected="no DICOM object, and a notice: the card names another organ and has no codes"
)
def test_a_card_of_another_organ_writes_no_lung_nodules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: Seen
) -> None:
    model = model_for(tmp_path / "model")
    path = model / "model_card.json"
    spleen = {"task": "Decathlon spleen segmentation", "labels": {"0": "background", "1": "spleen"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | spleen))
    case = segmented_chest(tmp_path, model)
    files = sorted(file.name for file in case.iterdir())
    seen(f"files {', '.join(files)}")
    assert files == ["lesion_mask.nii.gz", "lesions.csv"]
    assert "no DICOM SEG and SR: the label 1 (spleen) of the model card has no DICOM codes" in capsys.readouterr().err


@pytest.mark.case("show_codes", expected="codes, titles and region of an older lung card through the preset")
def test_an_older_lung_card_keeps_its_codes(tmp_path: Path, seen: Seen) -> None:
    model = model_for(tmp_path / "model")
    path = model / "model_card.json"
    older = {"task": "Segmentation of nodule in chest CT", "labels": {"0": "background", "1": "nodule"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | older))
    case = segmented_chest(tmp_path, model)
    seg, report = (pydicom.dcmread(case / name) for name in ("lesion_mask.dcm", "lesions_sr.dcm"))
    (segment,) = seg.SegmentSequence
    shown = (
        seg.SeriesDescription, seg.ContentLabel, segment.SegmentLabel, segment.SegmentedPropertyTypeCodeSequence[0].CodeMeaning,
        segment.AnatomicRegionSequence[0].CodeMeaning, report.SeriesDescription,
    )  # fmt: skip
    seen(" | ".join(shown))
    assert shown == (
        "Lung nodules (research use only)", "LUNG_NODULES", "Nodule", "Nodule", "Lung",
        "Lung nodule measurements (research use only)",
    )  # fmt: skip
    for text in ("CT of chest", "All lung nodules", "Lung nodule 1"):
        assert text in report.to_json()


@pytest.mark.case("not_hu", expected="body part HEAD: finding body-part-differs, no SEG and SR with lung codes")
def test_a_brain_gets_no_lung_nodules(tmp_path: Path, seen: Seen) -> None:
    case = segmented_chest(tmp_path, model_for(tmp_path / "model"), body_part="HEAD")
    record = json.loads((tmp_path / "out/segmentations.json").read_text())["cases"][0]
    seen(", ".join(finding["code"] for finding in record["findings"]) or "no finding")
    assert [finding["seen"] for finding in record["findings"]] == ["body part HEAD"]
    assert sorted(file.name for file in case.iterdir()) == ["lesion_mask.nii.gz", "lesions.csv"]


# --- F15


def with_segments(folder: Path, masks: np.ndarray, labels: tuple[str, ...], *, kind: str = "BINARY") -> Path:
    """Write a chest and a DICOM SEG with one segment for each mask of the last axis."""
    slices = ct_series(chest_hu(12, 48), pixel_mm=7.2)
    for dataset in slices:
        for keyword in ("PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "AccessionNumber", "StudyID"):
            setattr(dataset, keyword, "")
        dataset.ReferringPhysicianName = ""
    save_series(folder, slices)
    segmentation(slices, masks.astype(np.uint8), labels=labels, kind=kind).save_as(folder / "seg.dcm")
    return folder


def lungs_and_nodule() -> tuple[np.ndarray, np.ndarray]:
    nodule = nodule_mask(12, 48)
    return np.roll(nodule, 1, axis=1) | nodule, nodule


@pytest.mark.case("seg_labels", expected="overlapping segments are refused by number and label")
def test_overlapping_segments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: Seen) -> None:
    lung, nodule = lungs_and_nodule()
    cohort = with_segments(tmp_path / "cohort", np.stack((nodule, lung), axis=-1), ("nodule", "lung"))
    code = step(tmp_path, "check", "--cohort", cohort, "--output", tmp_path / "index.json")
    error = capsys.readouterr().err
    seen(
        f"exit code {code}: {next(line.strip() for line in error.splitlines() if 'seen:' in line and 'segments' in line)}"
    )
    assert code == 65
    assert f"segments 1 (nodule) and 2 (lung) in {int((lung & nodule).sum())} voxels" in error


@pytest.mark.case(
    "seg_labels", expected="organs and a tumor in one segmentation are two labels; a LABELMAP gives no false notice"
)
@pytest.mark.parametrize("kind", ["BINARY", "LABELMAP"])
def test_segments_of_several_organs_are_several_labels(tmp_path: Path, seen: Seen, kind: str) -> None:
    lung, nodule = lungs_and_nodule()
    masks = np.where(nodule, 2, np.where(lung, 1, 0))
    cohort = with_segments(tmp_path / "cohort", masks, ("Lung-Left", "GTV-1"), kind=kind)
    words = ("--cohort", cohort, "--output", tmp_path / "index.json")
    assert step(tmp_path, "check", *words) == 0
    results = json.loads((tmp_path / "check.json").read_text())["results"]
    seen(f"labels {', '.join(label['name'] for label in results['labels'])}, {results['num_lesions']} components")
    assert [label["name"] for label in results["labels"]] == ["Lung-Left", "GTV-1"]
    assert [finding["code"] for finding in results["findings"]] == []
    assert step(tmp_path, "check", *words, "--merge-labels", "1,2:thorax") == 0
    results = json.loads((tmp_path / "check.json").read_text())["results"]
    assert results["labels"][0]["name"] == "thorax"
    assert [finding["code"] for finding in results["findings"]] == []
    assert codec.to_json(results["merges"]) == [{"values": [1, 2], "name": "thorax"}]
