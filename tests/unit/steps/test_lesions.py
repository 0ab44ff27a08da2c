"""Components, lesion matching and diameters on masks that can be checked by head, and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from medweave_steps.metrics.components import connected_components
from medweave_steps.metrics.lesions import match_lesions

UNIT = (1.0, 1.0, 1.0)


def box(*boxes: tuple[slice, slice, slice], shape: tuple[int, int, int] = (12, 12, 12)) -> np.ndarray:
    array = np.zeros(shape, bool)
    for where in boxes:
        array[where] = True
    return array


@pytest.mark.parametrize("share", [0.01, 0.05, 0.15, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(9, 8, 7), (1, 6, 5), (6, 1, 5), (6, 5, 1), (1, 1, 9)])
def test_components_are_those_of_scipy_with_26_neighbours(share: float, shape: tuple[int, int, int]) -> None:
    for seed in range(10):
        mask = np.random.default_rng(seed).random(shape) < share
        expected, num = ndimage.label(mask, np.ones((3, 3, 3)))
        result = connected_components(mask)
        assert result.num == num
        theirs = expected.ravel()[result.voxels]
        pairs = set(zip(theirs.tolist(), result.labels.tolist(), strict=True))
        assert len(pairs) == num  # one label of ours for each of theirs, and back
        assert sorted(result.num_voxels()) == sorted(np.bincount(theirs)[1:])


def test_voxels_at_opposite_borders_are_not_neighbours() -> None:
    mask = box((slice(0, 1), slice(0, 1), slice(11, 12)), (slice(0, 1), slice(1, 2), slice(0, 1)))
    assert connected_components(mask).num == 2


def test_voxels_that_share_a_corner_are_one_component() -> None:
    mask = box((slice(0, 1), slice(0, 1), slice(0, 1)), (slice(1, 2), slice(1, 2), slice(1, 2)))
    assert connected_components(mask).num == 1


def test_no_foreground_has_no_component() -> None:
    assert connected_components(box()).num == 0


def test_hits_misses_and_false_positives_are_counted_by_component() -> None:
    lesion_a, lesion_b, lesion_c = (
        (slice(0, 2), slice(0, 2), slice(0, 2)),
        (slice(5, 7), slice(5, 7), slice(5, 7)),
        (slice(10, 12), slice(10, 12), slice(10, 12)),
    )
    reference = box(lesion_a, lesion_b, lesion_c)
    predicted = box(
        (slice(1, 3), slice(1, 3), slice(1, 3)),  # one voxel of lesion a
        (slice(6, 7), slice(6, 7), slice(6, 7)),  # inside lesion b
        (slice(9, 10), slice(10, 12), slice(10, 12)),  # next to lesion c, sharing no voxel
        (slice(0, 1), slice(8, 9), slice(8, 9)),  # nowhere near a lesion
    )
    match = match_lesions(predicted, reference, spacing_mm=UNIT)
    assert match.reference_hit == (True, True, False)
    assert match.num_predicted == 4
    assert match.num_false_positives == 2
    assert match.reference_volumes_mm3 == (8.0, 8.0, 8.0)
    assert match.reference_centres[1] == (5.5, 5.5, 5.5)


def test_one_component_over_two_lesions_hits_both() -> None:
    reference = box(
        (slice(2, 3), slice(2, 3), slice(2, 3)),
        (slice(2, 3), slice(2, 3), slice(6, 7)),
    )
    predicted = box((slice(2, 3), slice(2, 3), slice(2, 7)))
    match = match_lesions(predicted, reference, spacing_mm=UNIT)
    assert match.reference_hit == (True, True)
    assert (match.num_predicted, match.num_false_positives) == (1, 0)


def test_empty_masks_match_nothing() -> None:
    match = match_lesions(box(), box(), spacing_mm=UNIT)
    assert match.reference_hit == ()
    assert (match.num_predicted, match.num_false_positives) == (0, 0)
    everything_missed = match_lesions(box(), box((slice(0, 1),) * 3), spacing_mm=UNIT)
    assert everything_missed.reference_hit == (False,)


def test_diameter_is_in_plane_and_as_wide_as_its_voxels() -> None:
    # 5 rows x 1 column of 0.5 mm in one plane, and 9 planes of 2 mm: the length across planes does not count.
    lesion = box((slice(0, 9), slice(3, 8), slice(4, 5)))
    match = match_lesions(box(), lesion, spacing_mm=(2.0, 0.5, 0.5), plane_axis=0)
    assert match.reference_diameters_mm == (pytest.approx(4 * 0.5 + 0.5),)
    along_k = match_lesions(box(), lesion, spacing_mm=(2.0, 0.5, 0.5), plane_axis=2)
    assert along_k.reference_diameters_mm == (pytest.approx(np.hypot(16, 2) + 1.25),)


def test_single_voxel_is_one_voxel_long() -> None:
    match = match_lesions(box(), box((slice(0, 1),) * 3), spacing_mm=(0.7, 0.7, 2.0))
    assert match.reference_diameters_mm == (pytest.approx(0.7),)


@pytest.mark.parametrize("plane_axis", [0, 1, 2])
def test_diameter_equals_the_brute_force_one(plane_axis: int) -> None:
    spacing_mm = (1.3, 0.6, 0.8)
    in_plane = [axis for axis in range(3) if axis != plane_axis]
    for seed in range(10):
        mask = np.random.default_rng(seed).random((7, 8, 9)) < 0.12
        labels, num = ndimage.label(mask, np.ones((3, 3, 3)))
        expected = []
        for label in range(1, num + 1):
            points = np.argwhere(labels == label)
            longest = 0.0
            for plane in np.unique(points[:, plane_axis]):
                flat = points[points[:, plane_axis] == plane][:, in_plane] * np.array(spacing_mm)[in_plane]
                longest = max(longest, np.linalg.norm(flat[:, None] - flat[None], axis=-1).max())
            expected.append(longest + np.mean(np.array(spacing_mm)[in_plane]))
        match = match_lesions(mask, mask, spacing_mm=spacing_mm, plane_axis=plane_axis)
        np.testing.assert_allclose(sorted(match.reference_diameters_mm), sorted(expected))


def test_a_digitised_ball_has_about_its_diameter() -> None:
    i, j, k = np.ogrid[:48, :48, :48]
    ball = ((i - 23.7) ** 2 + (j - 24.2) ** 2 + (k - 23.5) ** 2) * 0.5**2 <= 5**2
    match = match_lesions(ball, ball, spacing_mm=(0.5, 0.5, 0.5), plane_axis=0)
    assert match.reference_diameters_mm[0] == pytest.approx(10, abs=0.5)
    assert match.reference_volumes_mm3[0] == pytest.approx(4 / 3 * np.pi * 125, rel=0.02)


def test_size_classes_are_closed_below_and_open_above() -> None:
    shape = (8, 40, 40)
    lesions = box(
        (slice(0, 1), slice(0, 1), slice(0, 6)),  # 6 mm
        (slice(0, 1), slice(10, 11), slice(0, 8)),  # 8 mm
        (slice(0, 1), slice(20, 21), slice(0, 10)),  # 10 mm
        shape=shape,
    )
    result = box((slice(0, 1), slice(0, 1), slice(0, 1)), (slice(0, 1), slice(20, 21), slice(3, 4)), shape=shape)
    match = match_lesions(result, lesions, spacing_mm=UNIT, plane_axis=0)
    assert match.reference_diameters_mm == (6.0, 8.0, 10.0)
    assert match.count(at_least_mm=6, below_mm=8) == (1, 1)
    assert match.count(at_least_mm=6) == (2, 3)
    assert match.count(at_least_mm=10) == (1, 1)
    assert match.count(at_least_mm=10.1) == (0, 0)
