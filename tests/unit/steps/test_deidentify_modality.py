"""What `deidentify` retains of a cohort's modality, contrasts and labels, and which descriptions it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest

from support.dicom_builder import CtSeries, write_datasets
from support.identified import deidentify

MR_IMAGE = "1.2.840.10008.5.1.4.1.1.4"


def write_volume(path: Path, shape: tuple[int, ...], dtype: type = np.int16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 2.0, 2.0, 1.0])), path)


def data_set(folder: Path, shape: tuple[int, ...] = (8, 8, 8), **description: Any) -> Path:
    """Write one case with a mask and a `dataset.json` of these keys."""
    write_volume(folder / "imagesTr" / "a.nii.gz", shape)
    write_volume(folder / "labelsTr" / "a.nii.gz", shape[:3], np.uint8)
    training = [{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}]
    (folder / "dataset.json").write_text(json.dumps({"training": training, "test": []} | description))
    return folder


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder.parent / "out" / "dataset.json").read_text())


@pytest.mark.parametrize(
    ("declared", "written_modality"),
    [
        (None, {"0": "CT"}),
        ("MRI", {"0": "MRI"}),
        ({"0": "ct"}, {"0": "CT"}),
        ({"1": "T2w", "0": "FLAIR"}, {"0": "FLAIR", "1": "T2w"}),
    ],
)
def test_the_declared_modality_is_retained(tmp_path: Path, declared: Any, written_modality: dict[str, str]) -> None:
    shape = (8, 8, 8) if len(written_modality) == 1 else (8, 8, 8, len(written_modality))
    cohort = data_set(tmp_path / "cohort", shape, **({} if declared is None else {"modality": declared}))
    assert deidentify(cohort) == 0
    assert written(cohort)["modality"] == written_modality
    assert written(cohort)["tensorImageSize"] == f"{len(shape)}D"


@pytest.mark.parametrize(
    "description",
    [
        {"modality": ["CT"]},
        {"modality": {"first": "CT"}},
        {"modality": {"0": "scan of Rosamund Quillfeather, born 1948, at St Elsewhere"}},
        {"labels": ["background", "nodule"]},
        {"labels": {"background": 0, "nodule": 1}},
    ],
)
def test_a_description_in_another_form_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], description: dict[str, Any]
) -> None:
    assert deidentify(data_set(tmp_path / "cohort", **description)) == 65
    message = capsys.readouterr().err
    assert "dataset.json is invalid" in message
    assert "Rosamund" not in message


def test_pet_is_refused_because_nifti_has_no_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deidentify(data_set(tmp_path / "cohort", modality={"0": "PET"})) == 65
    assert "read PET from DICOM, which has the unit of its values" in capsys.readouterr().err


def test_another_number_of_contrasts_than_declared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort = data_set(tmp_path / "cohort", (8, 8, 8, 3), modality={"0": "FLAIR", "1": "T1w"})
    assert deidentify(cohort) == 65
    assert "a fourth axis of 2: FLAIR, T1w" in capsys.readouterr().err


def test_volumes_of_several_contrasts_without_a_description_are_copied_whole(tmp_path: Path) -> None:
    write_volume(tmp_path / "cohort" / "a.nii.gz", (8, 8, 8, 4))
    assert deidentify(tmp_path / "cohort") == 0
    (new,) = (tmp_path / "out" / "images").iterdir()
    source = nibabel.load(tmp_path / "cohort" / "a.nii.gz")
    assert np.array_equal(np.asarray(nibabel.load(new).dataobj), np.asarray(source.dataobj))


def test_the_modality_of_dicom_images_is_retained(tmp_path: Path) -> None:
    datasets = CtSeries().datasets()
    for dataset in datasets:
        dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = MR_IMAGE
        dataset.Modality, dataset.EchoTime, dataset.ScanningSequence = "MR", 90, "SE"
    write_datasets(datasets, tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 0
    for path in (tmp_path / "out").rglob("*.dcm"):
        new = pydicom.dcmread(path)
        assert (new.SOPClassUID, new.Modality, new.EchoTime, new.ScanningSequence) == (MR_IMAGE, "MR", 90, "SE")
