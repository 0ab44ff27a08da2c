"""The same RT Structure Set, read by medweave and by plastimatch: the same voxels, except centers on a contour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import SimpleITK

from support.checked import check, read_truth
from support.dicom_builder import AXIAL, FEET_FIRST_PRONE, CtSeries, rotated, write_datasets
from support.structure_sets import DrawnRoi, circle, distance_to_path, keyhole, rectangle, star, structure_set
from support.validators import plastimatch_masks

SHAPE = (8, 120, 100)
NEAR = 1e-3  # voxels; plastimatch computes in single precision, and medweave counts centers on a contour


def stars(seed: int) -> list[tuple[float, np.ndarray]]:
    """Return two stars that do not touch in each inner slice, at places between voxel centers."""
    rng = np.random.default_rng(seed)
    return [
        (
            index,
            star(
                (rng.uniform(28, 32) + shift, rng.uniform(45, 52)),
                rng.uniform(12, 24),
                points=7,
                turn=rng.uniform(0, 6),
            ),
        )
        for index in range(1, SHAPE[0] - 1)
        for shift in (0, 58)
    ]


def holes() -> list[tuple[float, np.ndarray]]:
    return [
        (index, circle((60.3, 49.7), radius + index / 3))
        for index in range(1, SHAPE[0] - 1)
        for radius in (39.2, 24.1, 9.3)
    ]


def keyholes() -> list[tuple[float, np.ndarray]]:
    outer, inner = circle((60.3, 49.7), 39.2), star((59.2, 50.4), 24.3)
    return [(index, keyhole(outer, inner)) for index in range(2, 6)]


SHAPES = {"stars": stars(3), "holes": holes(), "keyholes": keyholes()}
ORIENTATIONS = {
    "axial": AXIAL, "prone": FEET_FIRST_PRONE, "oblique in plane": rotated((0, 0, 1), 17), "oblique": rotated((1, 2, 3), 20),
}  # fmt: skip


def on_the_grid_of(series_grid: np.ndarray, image: SimpleITK.Image) -> np.ndarray:
    """Return the voxels of an image in the order of the series, [slice, row, column]."""
    corner = np.asarray(image.TransformIndexToPhysicalPoint((0, 0, image.GetSize()[2] - 1)))
    is_reversed = np.linalg.norm(corner - series_grid[:3, 3]) < np.linalg.norm(image.GetOrigin() - series_grid[:3, 3])
    array = SimpleITK.GetArrayFromImage(image) > 0
    return array[::-1] if is_reversed else array


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_plastimatch_finds_the_same_voxels(tmp_path: Path, shape: str, orientation: str) -> None:
    series = CtSeries(shape=SHAPE, orientation=ORIENTATIONS[orientation], spacing_mm=(2.5, 0.9, 0.8))
    contours = SHAPES[shape]
    series.write(tmp_path / "ct")
    (path,) = write_datasets([structure_set(series, {1: DrawnRoi(name="roi", contours=contours)})], tmp_path / "rt")
    (case,) = check(tmp_path).index.cases
    ours = read_truth(tmp_path, case)
    assert ours is not None
    theirs = on_the_grid_of(series.affine_lps(), plastimatch_masks(path, tmp_path / "ct", tmp_path / "out")["roi"])
    differing = (ours > 0) != theirs
    on_contour = np.zeros(SHAPE, dtype=bool)
    for index, polygon in contours:
        if differing[int(index)].any():
            on_contour[int(index)] |= distance_to_path(polygon, SHAPE[1:]) <= NEAR
    assert theirs.sum() > 5000
    assert not (differing & ~on_contour).any()
    assert 2 * int((ours & theirs).sum()) > 0.999 * (int(ours.sum()) + int(theirs.sum()))


def test_contours_through_voxel_centers_differ_by_these_centers_only(tmp_path: Path) -> None:
    # rt-utils draws such contours; medweave counts the path as part of the ROI, as DICOM demands.
    series = CtSeries(shape=SHAPE)
    series.write(tmp_path / "ct")
    roi = DrawnRoi(name="roi", contours=[(index, rectangle((20, 30), (50, 70))) for index in (2, 3)])
    (path,) = write_datasets([structure_set(series, {1: roi})], tmp_path / "rt")
    (case,) = check(tmp_path).index.cases
    ours = read_truth(tmp_path, case)
    assert ours is not None
    theirs = on_the_grid_of(series.affine_lps(), plastimatch_masks(path, tmp_path / "ct", tmp_path / "out")["roi"])
    assert ours.sum() == 2 * 31 * 41
    assert (ours[2:4, 21:50, 31:70] == theirs[2:4, 21:50, 31:70]).all()
    assert not (theirs & (ours == 0)).any()
