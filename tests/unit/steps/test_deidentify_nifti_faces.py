"""`deidentify` on NIfTI volumes that may show a face: the data class, brain masks, and the errors about them."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.deidentify.nifti_case import NiftiJob, deidentify_nifti
from medweave_steps.io.findings import SeriesName
from support.identified import card, deidentify, notices, results
from support.nifti_files import save, write_bids


def write_volume(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 2.0, 2.0, 1.0])), path)


def data_set(folder: Path, modality: dict[str, str], labels: np.ndarray | None = None) -> np.ndarray:
    """Write one case of the Medical Segmentation Decathlon; return its voxels."""
    shape = (8, 9, 10) if len(modality) == 1 else (8, 9, 10, len(modality))
    values = np.random.default_rng(0).integers(100, 900, shape).astype(np.int16)
    write_volume(folder / "imagesTr" / "Quillfeather.nii.gz", values)
    write_volume(
        folder / "labelsTr" / "Quillfeather.nii.gz", np.zeros((8, 9, 10), np.uint8) if labels is None else labels
    )
    pair = {"image": "./imagesTr/Quillfeather.nii.gz", "label": "./labelsTr/Quillfeather.nii.gz"}
    (folder / "dataset.json").write_text(json.dumps({"modality": modality, "training": [pair], "test": []}))
    return values


def nifti_mask(folder: Path, shape: tuple[int, int, int] = (8, 9, 10)) -> tuple[Path, np.ndarray]:
    mask = np.zeros(shape, np.uint8)
    mask[2:6, 3:7, 4:] = 1
    write_volume(folder / "Quillfeather.nii.gz", mask)
    return folder, mask


@pytest.mark.parametrize(
    ("modality", "more", "data_class"),
    [
        ({"0": "CT"}, (), "de-identified"),
        ({"0": "CT"}, ("--faces", "present"), "identified"),
        ({"0": "MRI"}, (), "identified"),
        ({"0": "FLAIR", "1": "T1w"}, ("--faces", "absent"), "de-identified"),
    ],
)
def test_nifti_volumes_of_mr_need_a_declaration(
    tmp_path: Path, modality: dict[str, str], more: tuple[str, ...], data_class: str
) -> None:
    data_set(tmp_path / "cohort", modality)
    assert deidentify(tmp_path / "cohort", *more) == 0
    assert card(tmp_path / "cohort")["data_class"] == data_class
    assert ("case-" in notices(tmp_path / "cohort")) == (more != ("--faces", "absent"))
    assert "Quillfeather" not in notices(tmp_path / "cohort")


@pytest.mark.parametrize(("modality", "air"), [({"0": "CT"}, -1000), ({"0": "FLAIR", "1": "T1w", "2": "T2w"}, 0)])
def test_a_mask_of_a_nifti_volume_applies_to_every_contrast(tmp_path: Path, modality: dict[str, str], air: int) -> None:
    values = data_set(tmp_path / "cohort", modality)
    masks, mask = nifti_mask(tmp_path / "masks")
    assert deidentify(tmp_path / "cohort", "--faces", "present", "--brain-masks", str(masks)) == 0
    new = np.asarray(nibabel.load(next((tmp_path / "out" / "imagesTr").iterdir())).dataobj)
    keep = mask if values.ndim == 3 else mask[..., None]
    np.testing.assert_array_equal(new, np.where(keep, values, air))
    assert card(tmp_path / "cohort")["data_class"] == "de-identified"
    assert "Clean Recognizable Visual Features Option" in results(tmp_path / "cohort")["options"]


@pytest.mark.parametrize("below", ["", "sub-01/ses-1/anat/"])
def test_masks_may_be_bids_derivatives_of_the_cohort(tmp_path: Path, below: str) -> None:
    folder = tmp_path / "cohort"
    write_bids(folder)
    mask = np.zeros((8, 9, 10), np.uint8)
    mask[1:6, 2:7, 3:] = 1
    save(folder / f"derivatives/brain/{below}sub-01_ses-1_desc-brain_mask.nii.gz", mask)
    assert deidentify(folder, "--faces", "present", "--brain-masks", str(folder / "derivatives/brain")) == 0
    (new,) = (tmp_path / "out").glob("sub-*/ses-*/anat/*_T1w.nii.gz")
    source = nibabel.load(folder / "sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz")
    expected = np.where(mask, np.asarray(source.dataobj), 0)
    np.testing.assert_array_equal(np.asarray(nibabel.load(new).dataobj), expected)
    assert card(folder)["data_class"] == "de-identified"
    assert not list((tmp_path / "out").rglob("*brain_mask*"))


def test_masks_elsewhere_in_the_cohort_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_bids(tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(tmp_path / "cohort/sub-01")) == 2
    assert "--brain-masks and --cohort overlap" in capsys.readouterr().err


def test_removed_voxels_of_a_volume_of_unknown_modality_have_its_lowest_value(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(-900, 900, (8, 9, 10)).astype(np.int16)
    write_volume(tmp_path / "cohort" / "Quillfeather.nii.gz", values)
    masks, mask = nifti_mask(tmp_path / "masks")
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(masks)) == 0
    new = np.asarray(nibabel.load(next((tmp_path / "out" / "images").iterdir())).dataobj)
    np.testing.assert_array_equal(new, np.where(mask, values, values.min()))


def test_nifti_masks_and_labels_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.zeros((8, 9, 10), np.uint8)
    labels[0, 0, 0] = 1
    data_set(tmp_path / "cohort", {"0": "MRI"}, labels)
    other, _ = nifti_mask(tmp_path / "other", (8, 9, 11))
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(other)) == 65
    assert "the brain mask is on another grid" in capsys.readouterr().err
    masks, _ = nifti_mask(tmp_path / "masks")
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(masks)) == 65
    assert "1 labelled voxels that the mask removes" in capsys.readouterr().err
    assert deidentify(tmp_path / "cohort", "--require-deidentified") == 65
    assert "the volume may show a face" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "depth", "factor"),
    [("brain-mask-grid", 11, 1), ("bad-brain-mask", 10, 0), ("label-outside-brain-mask", 10, 1)],
)
def test_errors_about_the_mask_of_a_nifti_case_name_the_case(
    tmp_path: Path, code: str, depth: int, factor: int
) -> None:
    labels = np.zeros((8, 9, 10), np.uint8)
    labels[0, 0, 0] = 1
    data_set(tmp_path / "cohort", {"0": "CT"}, labels)
    masks, mask = nifti_mask(tmp_path / "masks", (8, 9, depth))
    write_volume(masks / "Quillfeather.nii.gz", mask * np.uint8(factor))
    job = NiftiJob(
        cohort=tmp_path / "cohort",
        output=tmp_path / "out",
        name=SeriesName(case_id="case-1", ordinal=7),
        images=(("imagesTr/Quillfeather.nii.gz", "imagesTr/case-1.nii.gz"),),
        mask=("labelsTr/Quillfeather.nii.gz", "labelsTr/case-1.nii.gz"),
        channels=CT_CHANNELS,
        face="present",
        brain_mask=masks / "Quillfeather.nii.gz",
        refuse_faces=True,
    )
    finding = deidentify_nifti(job).finding
    assert finding is not None
    assert (finding.code, finding.case_id) == (code, "case-1")
    assert finding.what.startswith("case-1 (series 7): ")
