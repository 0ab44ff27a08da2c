"""The lung training under StreamFlow and under cwltool, by their own commands: equal models and masks."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from support.both_engines import only, pseudonym_key, run_both
from support.chest_cohort import write_dicom
from support.cwl_files import LUNG, TOOLS, load

SMALL = {"training_batch_size": 2, "training_patch_shape": [16, 16, 16], "training_channels": [4] * 5}
SMALL_WINDOW = {"window_shape": [32, 32, 32]}


def with_a_small_window(folder: Path) -> Path:
    """Copy the lung training workflow and its tools; the copy sets an option of `train` that the workflow has no input for."""
    document = load(LUNG / "train.cwl")
    train = document["steps"]["train"]["in"]
    assert not train.keys() & SMALL_WINDOW.keys()
    train |= {name: {"default": value} for name, value in SMALL_WINDOW.items()}
    for name in ("tools", "lung"):
        (folder / name).mkdir(parents=True)
    for tool in TOOLS:
        shutil.copy(tool, folder / "tools")
    path = folder / "lung" / "train.cwl"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.pipeline
def test_training_gives_bit_identical_models_and_masks(tmp_path: Path) -> None:
    index = write_dicom(tmp_path / "cohort", 5, coarse=True)
    test_cases = [case.case_id for case in index.cases[:2]]
    (tmp_path / "cohort" / "splits.json").write_text(json.dumps({"test": test_cases}), encoding="utf-8")
    job = {
        "cohort": {"class": "Directory", "path": "cohort"},
        "pseudonym_key": pseudonym_key(tmp_path),
        "spacing_mm": [8.0, 8.0, 8.0],
        "training_steps": 3,
        **SMALL,
        "cases_per_batch": 1,
        "gate_candidates": "int8:openvino",  # how fast int8 is at the moment must not choose the model
    }
    result = run_both(tmp_path, with_a_small_window(tmp_path / "workflows"), job)
    same = ("model.safetensors", "float32.bin", "metrics.json", "lesion_mask.nii.gz", "lesions.csv")
    chosen = {name: only(files, *same) for name, files in result.items()}
    assert chosen["streamflow"] == chosen["cwltool"]
    assert len(only(chosen["cwltool"], "lesion_mask.nii.gz")) == 2
    assert "accepted_model/models/model.safetensors" in chosen["cwltool"]
    # A DICOM SEG names its model by the digest of the card, which has the seconds of the training; its frames must
    # not differ.
    segs = sorted(path.relative_to(tmp_path / "by-cwltool") for path in (tmp_path / "by-cwltool").rglob("*_mask.dcm"))
    assert len(segs) == 2
    for path in segs:
        assert frames(tmp_path / "by-cwltool" / path) == frames(tmp_path / "by-streamflow" / path)


def frames(path: Path) -> tuple[str, list[str]]:
    """Return the digest of all voxels of a DICOM SEG, and the source images that its frames refer to."""
    import pydicom

    dataset = pydicom.dcmread(path)
    (series,) = dataset.ReferencedSeriesSequence
    images = [image.ReferencedSOPInstanceUID for image in series.ReferencedInstanceSequence]
    return hashlib.sha256(dataset.PixelData).hexdigest(), images
