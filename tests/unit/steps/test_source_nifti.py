"""NIfTI volumes and masks, plain and as the Medical Segmentation Decathlon packs them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from medweave_core.contracts.labels import Label
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.source import open_source
from support.checked import cases_of, check, errors_of, notices_of, only_error, read_truth

SHAPE = (9, 8, 6)
AFFINE = np.array([[-0.7, 0, 0, 100], [0, 0.8, 0, -90], [0, 0, 2.5, -300], [0, 0, 0, 1]])


def hu(seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(-1024, 1500, SHAPE).astype(np.int16)
    values[0, 0] = -1024
    return values


def save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE, **header: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(values, affine)
    image.header.set_xyzt_units(header.pop("units", "mm"))
    for name, value in header.items():
        image.header[name] = value
    nib.save(image, path)


def mask() -> np.ndarray:
    values = np.zeros(SHAPE, dtype=np.uint8)
    values[2:4, 3:5, 1:3] = 1
    return values


def task06(folder: Path, **changes: Any) -> None:
    """A folder like Task06_Lung, with the quirks of the real one."""
    for number in (1, 3):
        save(folder / f"imagesTr/lung_{number:03d}.nii.gz", hu(number))
        save(folder / f"labelsTr/lung_{number:03d}.nii.gz", mask())
        (folder / f"imagesTr/._lung_{number:03d}.nii.gz").write_bytes(b"Mac OS X")
    save(folder / "imagesTs/lung_002.nii.gz", hu(2))
    names = [{"image": f"./imagesTr/lung_{n:03d}.nii.gz", "label": f"./labelsTr/lung_{n:03d}.nii.gz"} for n in (1, 3)]
    data = {
        "name": "Lung",
        "modality": {"0": "CT"},
        "labels": {"0": "background", "1": "cancer"},
        "numTraining": 3,  # the real file says 64 and lists 63
        "numTest": 1,
        "training": names,
        "test": ["./imagesTs/lung_002.nii.gz"],
    }
    (folder / "dataset.json").write_text(json.dumps(data | changes))


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.uint8, ">i2"])
def test_values_and_affine(tmp_path: Path, name: str, dtype: Any) -> None:
    values = np.abs(hu() % 200) if dtype is np.uint8 else hu()
    save(tmp_path / name, values.astype(dtype))
    (case,) = cases_of(tmp_path)
    source = open_source(tmp_path, case)
    planes = list(source.planes(num_workers=2))
    assert source.plane_axis == 2
    assert planes[0].dtype == np.float32
    np.testing.assert_array_equal(np.stack(planes, axis=2), values.astype(np.float32))
    np.testing.assert_array_equal(source.volume(), values.astype(np.float32))
    np.testing.assert_allclose(np.asarray(source.grid.affine), AFFINE, atol=1e-5)
    assert source.headers() == []


def test_slope_intercept_and_not_a_number(tmp_path: Path) -> None:
    values = hu().astype(np.float32)
    values[4, 4, 4] = np.nan
    image = nib.Nifti1Image(values, AFFINE)
    nib.save(image, tmp_path / "a.nii")
    scaled = nib.Nifti1Image(hu(), AFFINE)
    scaled.header.set_slope_inter(2, -10)
    (tmp_path / "b").mkdir()
    nib.save(scaled, tmp_path / "b/b.nii")
    a, b = (open_source(tmp_path, case) for case in sorted(cases_of(tmp_path), key=lambda c: c.files))
    assert a.volume()[4, 4, 4] == -1024
    np.testing.assert_allclose(b.volume(), nib.load(tmp_path / "b/b.nii").get_fdata(), atol=0.51)


def test_oblique_affine_and_a_trailing_axis(tmp_path: Path) -> None:
    turn = nib.eulerangles.euler2mat(0.2, 0.1, -0.3)
    affine = AFFINE.copy()
    affine[:3, :3] = turn @ AFFINE[:3, :3]
    save(tmp_path / "a.nii.gz", hu()[..., None], affine)
    (case,) = cases_of(tmp_path)
    np.testing.assert_allclose(np.asarray(case.grid.affine), affine, atol=1e-4)
    np.testing.assert_array_equal(open_source(tmp_path, case).volume(), hu())


def test_a_folder_like_task06(tmp_path: Path) -> None:
    task06(tmp_path)
    (tmp_path / "splits.json").write_text(json.dumps({"test": ["lung_003"]}))
    index = check(tmp_path).index
    assert index.layout == "msd"
    assert index.labels == (Label(value=1, name="cancer"),)
    assert [case.case_id for case in index.cases] == ["lung_001", "lung_002", "lung_003"]
    assert [case.ground_truth is None for case in index.cases] == [False, True, False]
    assert [case.fixed_split for case in index.cases] == [None, None, "test"]
    truth = read_truth(tmp_path, index.cases[0])
    assert truth is not None
    assert truth.dtype == np.uint8
    np.testing.assert_array_equal(truth, mask())
    assert [finding.code for finding in index.findings if finding.severity == "error"] == []


def test_plain_folders_pair_volumes_and_masks_by_name(tmp_path: Path) -> None:
    save(tmp_path / "images/p1.nii.gz", hu(1))
    save(tmp_path / "images/p2.nii", hu(2))
    save(tmp_path / "labels/p1.nii", mask())
    index = check(tmp_path).index
    assert index.layout == "nifti"
    assert {case.files[0]: case.ground_truth for case in index.cases} == {
        "images/p1.nii.gz": "labels/p1.nii",
        "images/p2.nii": None,
    }
    assert all(case.case_id.startswith("case-") for case in index.cases)
    assert len({case.patient_key for case in index.cases}) == 2


def test_float_labels_as_some_tools_write_them(tmp_path: Path) -> None:
    save(tmp_path / "images/p1.nii.gz", hu(1))
    save(tmp_path / "labels/p1.nii.gz", mask().astype(np.float64))
    (case,) = cases_of(tmp_path)
    np.testing.assert_array_equal(read_truth(tmp_path, case), mask())


def test_digest_is_that_of_the_voxels_not_of_the_file(tmp_path: Path) -> None:
    save(tmp_path / "one/a.nii.gz", hu())
    save(tmp_path / "two/b.nii", hu())
    save(tmp_path / "three/c.nii", hu(1))
    digests = [cases_of(tmp_path / name)[0].content_sha256 for name in ("one", "two", "three")]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_truncated_volume(tmp_path: Path, keep: float) -> None:
    save(tmp_path / "a.nii.gz", np.random.default_rng(0).integers(-1024, 1500, (64, 60, 40)).astype(np.int16))
    data = (tmp_path / "a.nii.gz").read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(data[: int(len(data) * keep)])
    assert only_error(tmp_path).code == "truncated-file"


def test_truncated_without_compression(tmp_path: Path) -> None:
    save(tmp_path / "a.nii", hu())
    (tmp_path / "a.nii").write_bytes((tmp_path / "a.nii").read_bytes()[:-10])
    assert only_error(tmp_path).code == "truncated-file"


def test_file_that_broke_after_check(tmp_path: Path) -> None:
    save(tmp_path / "a.nii", hu())
    (case,) = cases_of(tmp_path)
    (tmp_path / "a.nii").write_bytes((tmp_path / "a.nii").read_bytes()[:-10])
    with pytest.raises(UserInputError, match="truncated"):
        open_source(tmp_path, case).volume()


@pytest.mark.parametrize("content", [b"", b"not a volume", gzip.compress(b"x" * 1000, mtime=0)])
def test_not_nifti(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.nii.gz").write_bytes(content)
    assert only_error(tmp_path).code == "not-nifti"


def test_four_dimensions(tmp_path: Path) -> None:
    save(tmp_path / "a.nii.gz", np.stack([hu(), hu(1)], axis=-1))
    finding = only_error(tmp_path)
    assert finding.code == "not-a-3d-volume"
    assert "9 x 8 x 6 x 2" in finding.seen


def test_sheared_affine(tmp_path: Path) -> None:
    affine = AFFINE.copy()
    affine[1, 2] = 0.5
    save(tmp_path / "a.nii.gz", hu(), affine)
    assert only_error(tmp_path).code == "sheared-affine"


def test_metres(tmp_path: Path) -> None:
    save(tmp_path / "a.nii.gz", hu(), units="meter")
    assert only_error(tmp_path).code == "wrong-unit"


def test_no_orientation_is_said(tmp_path: Path) -> None:
    image = nib.Nifti1Image(hu(), None)
    image.header["sform_code"] = image.header["qform_code"] = 0
    nib.save(image, tmp_path / "a.nii.gz")
    assert "no-orientation" in notices_of(tmp_path)


def test_values_without_air_are_said(tmp_path: Path) -> None:
    save(tmp_path / "a.nii.gz", (hu().clip(0, 1000)).astype(np.int16))
    assert "values from 0" in notices_of(tmp_path)["no-air"].seen


@pytest.mark.parametrize("what", ["shape", "shift", "flip"])
def test_mask_on_another_grid(tmp_path: Path, what: str) -> None:
    values, affine = mask(), AFFINE.copy()
    if what == "shape":
        values = values[:, :, :-1]
    elif what == "shift":
        affine[2, 3] += 2.5
    else:
        affine[0, 0] *= -1
    save(tmp_path / "images/p1.nii.gz", hu(1))
    save(tmp_path / "labels/p1.nii.gz", values, affine)
    finding = only_error(tmp_path)
    assert finding.code == "mask-on-another-grid"
    assert ("9 x 8 x 5" if what == "shape" else "mm from that of the volume") in finding.seen


def test_empty_mask(tmp_path: Path) -> None:
    task06(tmp_path)
    save(tmp_path / "labelsTr/lung_001.nii.gz", np.zeros(SHAPE, np.uint8))
    assert notices_of(tmp_path)["empty-mask"].case_id == "lung_001"
    assert len(check(tmp_path).index.cases) == 3


@pytest.mark.parametrize(
    ("value", "seen"), [(2, "label 2 (8 voxels)"), (0.5, "value 0.5"), (-1, "value -1"), (300, "value 300")]
)
def test_labels_outside_the_declared_set(tmp_path: Path, value: float, seen: str) -> None:
    task06(tmp_path)
    save(tmp_path / "labelsTr/lung_003.nii.gz", mask() * np.float32(value))
    finding = only_error(tmp_path)
    assert finding.code == "labels-outside-declared-set"
    assert finding.case_id == "lung_003"
    assert finding.seen == seen


def test_mask_or_volume_that_is_listed_and_not_there(tmp_path: Path) -> None:
    task06(tmp_path)
    (tmp_path / "labelsTr/lung_001.nii.gz").unlink()
    (tmp_path / "imagesTr/lung_003.nii.gz").unlink()
    assert {finding.case_id: finding.code for finding in errors_of(tmp_path)} == {
        "lung_001": "missing-mask",
        "lung_003": "missing-volume",
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"modality": {"0": "PET"}}, "wrong-modality"),
        ({"training": [{"image": "a.nii.gz"}]}, "bad-json"),
        ({"labels": {"one": "cancer"}}, "bad-json"),
        ({"training": [{"image": "./imagesTr/lung_001.nii.gz", "label": "../../secret.nii.gz"}]}, "bad-json"),
    ],
)
def test_dataset_json_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    task06(tmp_path, **changes)
    with pytest.raises(UserInputError) as caught:
        check(tmp_path)
    assert caught.value.finding.code == code  # type: ignore[attr-defined]
    assert caught.value.do
