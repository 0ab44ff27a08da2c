"""F16: a NIfTI header whose fields contradict each other, and lengths in another unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest

from cases.chest import CHEST_AFFINE, chest_RAS, save_nifti
from support.checked import errors_of

SCALED = np.diag([1.3, 1.3, 1.3, 1.0])
MIRRORED = CHEST_AFFINE.copy()
MIRRORED[0, 0], MIRRORED[0, 3] = 3.6, -170


@pytest.mark.case("nifti_header", expected="refused: the message gives both values, or the implausible size")
@pytest.mark.parametrize(
    ("sform", "qform", "code", "parts"),
    [
        (CHEST_AFFINE @ SCALED, CHEST_AFFINE, "contradictory-voxel-sizes", ["4.68 x 4.68 x 10.4", "3.6 x 3.6 x 8"]),
        (CHEST_AFFINE, MIRRORED, "contradictory-orientation", ["sform LPS", "qform RPS"]),
        (np.diag([-700.0, -700, 1500, 1]), None, "implausible-voxel-size", ["700 x 700 x 1500 mm"]),
    ],
)
def test_contradictions_are_refused(
    tmp_path: Path,
    seen: Callable[[object], None],
    sform: np.ndarray,
    qform: np.ndarray | None,
    code: str,
    parts: list[str],
) -> None:
    path = save_nifti(tmp_path / "a.nii.gz", chest_RAS()[0], sform)
    image = nibabel.load(path)
    if qform is not None:
        image.set_sform(sform, code=2)
        image.set_qform(qform, code=1)
        nibabel.save(image, tmp_path / "a.nii.gz")
    (error,) = errors_of(tmp_path)
    seen(f"{error.code}: {error.seen}")
    assert error.code == code
    assert all(part in error.seen for part in parts)
