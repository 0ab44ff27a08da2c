"""Fields of NIfTI headers: units, form codes, voxel sizes, quaternions, scaling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from support.checked import check, notices_of, only_error, open_only

AFFINE = np.array([[-2.0, 0, 0, 30], [0, -2.0, 0, 40], [0, 0, 3.0, -50], [0, 0, 0, 1]])
Change = Callable[[Any], None]


def write(folder: Path, change: Change, kind: type = nibabel.Nifti1Image, *, suffix: str = ".nii") -> Path:
    """Write a volume whose header bytes are changed after nibabel has made them."""
    values = np.random.default_rng(0).integers(-1000, 300, (12, 10, 8)).astype(np.int16)
    values[0, 0] = -1024
    image = kind(values, AFFINE)
    image.set_sform(AFFINE, code=1)
    image.set_qform(AFFINE, code=1)
    nibabel.save(image, folder / "a.nii")
    content = (folder / "a.nii").read_bytes()
    size = kind.header_class.sizeof_hdr
    header = kind.header_class(binaryblock=content[:size], check=False)
    change(header)
    (folder / "a.nii").write_bytes(header.binaryblock + content[size:])
    return folder


def set_fields(**fields: Any) -> Change:
    def change(header: Any) -> None:
        for field, value in fields.items():
            name, _, index = field.partition("__")
            if index:
                header[name][int(index)] = value
            else:
                header[name] = value

    return change


def only_qform(**fields: Any) -> Change:
    return set_fields(sform_code=0, **fields)


REFUSED = {
    "meters": (set_fields(xyzt_units=1), "wrong-unit", "unit 'meter'"),
    "micrometres": (set_fields(xyzt_units=3 | 8), "wrong-unit", "unit 'micron'"),
    "unknown unit code": (set_fields(xyzt_units=5), "wrong-unit", "unit 'code 5'"),
    "unknown sform code": (set_fields(sform_code=99), "bad-affine", "sform_code 99"),
    "negative qform code": (set_fields(qform_code=-1), "bad-affine", "qform_code -1"),
    "another pixdim": (set_fields(pixdim__3=1), "contradictory-voxel-sizes", "sform 2 x 2 x 3 mm, pixdim 2 x 2 x 1 mm"),
    "zero pixdim": (only_qform(pixdim__2=0), "bad-affine", "no sform, pixdim 2 x 0 x 3"),
    "negative pixdim": (only_qform(pixdim__1=-2), "bad-affine", "no sform, pixdim -2 x 2 x 3"),
    "infinite pixdim": (only_qform(pixdim__1=np.inf), "bad-affine", "no sform, pixdim inf x 2 x 3"),
    "no form and zero pixdim": (only_qform(qform_code=0, pixdim__1=0), "bad-affine", "no sform, pixdim 0 x 2 x 3"),
    "qfac": (only_qform(pixdim__0=3), "bad-affine", "qfac (pixdim[0]) 3"),
    "quaternion": (only_qform(quatern_b=0.9, quatern_c=0.9), "bad-affine", "not a rotation"),
    "another rotation": (set_fields(quatern_b=0, quatern_c=0, quatern_d=0), "contradictory-orientation", "qform RAS"),
    "singular sform": (set_fields(srow_x=[0, 0, 0, 0]), "bad-affine", "voxel sizes"),
    "sform that is no number": (set_fields(srow_x=[np.nan, 0, 0, 0]), "bad-affine", "voxel sizes"),
    "parallel axes": (set_fields(srow_x=[-2, -2, 0, 0], srow_y=[-2, -2, 0, 0]), "bad-affine", "voxel sizes"),
    "infinite slope": (set_fields(scl_slope=np.inf), "bad-scaling", "scl_slope inf"),
    "huge slope": (set_fields(scl_slope=1e30, scl_inter=0), "bad-scaling", "scl_slope 1e+30"),
    "no intercept": (set_fields(scl_slope=1, scl_inter=np.nan), "bad-scaling", "scl_inter nan"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_fields_that_are_refused(tmp_path: Path, name: str, kind: type) -> None:
    change, code, seen = REFUSED[name]
    error = only_error(write(tmp_path, change, kind))
    assert (error.code, seen in error.seen) == (code, True), error


REPORTED = {
    "zero pixdim with an sform": (set_fields(pixdim__1=0), "pixdim 0 x 2 x 3"),
    "quaternion with an sform": (set_fields(quatern_b=0.9, quatern_c=0.9), "not a rotation"),
    "another origin": (set_fields(qoffset_x=35), "qform LPS, first voxel at 35.0, 40.0, -50.0 mm"),
    "intercept without slope": (set_fields(scl_slope=0, scl_inter=-1024), "ignores"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_fields_that_are_reported(tmp_path: Path, name: str) -> None:
    change, seen = REPORTED[name]
    notice = notices_of(write(tmp_path, change))["nifti-header"]
    assert seen in notice.seen
    assert np.allclose(open_only(tmp_path).grid.affine, AFFINE)


USABLE = {
    "unchanged": set_fields(),
    "no unit": set_fields(xyzt_units=0),
    "no scaling": set_fields(scl_slope=0, scl_inter=0),
    "scaling of nibabel": set_fields(scl_slope=np.nan, scl_inter=np.nan),
    "only a qform": only_qform(),
    "qfac 0": set_fields(pixdim__0=0),
    "no qform": set_fields(qform_code=0, quatern_b=0.9, quatern_c=0.9),
    "negative pixdim with an sform": set_fields(pixdim__1=-2),
    "rounded pixdim": set_fields(pixdim__3=2.99),
    "another template": set_fields(sform_code=4),
}


@pytest.mark.parametrize("name", USABLE)
def test_fields_without_a_word(tmp_path: Path, name: str) -> None:
    write(tmp_path, USABLE[name])
    assert "nifti-header" not in notices_of(tmp_path)
    assert np.allclose(open_only(tmp_path).grid.affine, AFFINE)


@pytest.mark.parametrize("factor", [0.001, 1000.0, 50.0])
def test_sizes_that_no_patient_has(tmp_path: Path, factor: float) -> None:
    values = np.zeros((64, 64, 64), np.int16)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([factor, factor, factor, 1])), tmp_path / "a.nii.gz")
    assert only_error(tmp_path).code == "implausible-voxel-size"


def test_a_bad_header_leaves_out_its_case_only(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, set_fields(xyzt_units=3) if name == "bad" else set_fields())
        (tmp_path / name / "a.nii").rename(tmp_path / name / f"{name}.nii")
    index = check(tmp_path, skip=True).index
    assert len(index.cases) == 1
    assert "wrong-unit" in {finding.code for finding in index.findings}
