"""Ground truth on the prepared grid: shapes are preserved and no lesion is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from medweave_core.contracts.volume import Grid
from medweave_steps.io.geometry import affine_rows, interpolate_axis, to_ras_order
from medweave_steps.preprocess.labels import paint, resample_lesions
from medweave_steps.preprocess.resample import Resampling, plan_resampling

EVERYWHERE = np.ones((3, 3, 3), dtype=bool)


def plan_for(shape, spacing=(2.5, 0.7, 0.7), target=(2.0, 2.0, 2.0)) -> Resampling:
    """An axial DICOM grid [slice, row, column]: columns run to the left, rows to the back."""
    affine = np.zeros((4, 4))
    affine[2, 0], affine[1, 1], affine[0, 2] = spacing[0], -spacing[1], -spacing[2]
    affine[:, 3] = (50, 60, -70, 1)
    return plan_resampling(Grid(shape=shape, affine=affine_rows(affine)), target)


def ball(shape, spacing, centre_mm, radius_mm) -> np.ndarray:
    axes = np.meshgrid(*[np.arange(n) * s for n, s in zip(shape, spacing, strict=True)], indexing="ij")
    return sum((a - c) ** 2 for a, c in zip(axes, centre_mm, strict=True)) <= radius_mm**2


def painted(truth, plan):
    label, outside = paint(resample_lesions(truth, plan), (0, 0, 0), plan.shape)
    assert outside == 0
    return label


def test_equals_interpolation_of_the_whole_mask():
    shape, spacing = (30, 80, 90), (2.5, 0.7, 0.7)
    plan = plan_for(shape, spacing)
    truth = np.zeros(shape, dtype=np.uint8)
    truth[ball(shape, spacing, (30, 20, 30), 9)] = 1
    truth[ball(shape, spacing, (50, 40, 20), 6)] = 1
    whole = np.ascontiguousarray(to_ras_order(truth, plan.axis, plan.flipped)).astype(np.float32)
    for axis in range(3):
        whole = interpolate_axis(whole, plan.ras_positions(axis), axis)
    np.testing.assert_array_equal(painted(truth, plan), whole >= 0.5 - 1e-6)


def test_a_ball_keeps_its_volume_and_place():
    shape, spacing, target = (40, 120, 120), (1.5, 0.7, 0.7), (2.0, 2.0, 2.0)
    plan = plan_for(shape, spacing, target)
    truth = ball(shape, spacing, (30, 40, 45), 10).astype(np.uint8)
    label = painted(truth, plan)
    assert label.sum() * 8 == pytest.approx(truth.sum() * np.prod(spacing), rel=0.05)
    centre = ndimage.center_of_mass(label)
    # R, A, S run against columns, against rows, with slices.
    expected = [(119 * 0.7 - 45) / 2, (119 * 0.7 - 40) / 2, 30 / 2]
    np.testing.assert_allclose(centre, expected, atol=0.15)


@given(
    places=st.lists(st.tuples(*[st.integers(0, n - 1) for n in (12, 40, 40)]), min_size=1, max_size=6, unique=True),
    target=st.sampled_from([(2.0, 2.0, 2.0), (1.0, 3.0, 5.0), (6.0, 6.0, 6.0), (0.5, 0.5, 0.5)]),
)
@settings(deadline=None, max_examples=60)
def test_no_lesion_is_lost_however_small(places, target):
    """Single voxels anywhere, the borders included, stay visible within one new voxel of where they were."""
    plan = plan_for((12, 40, 40), target=target)
    truth = np.zeros((12, 40, 40), dtype=np.uint8)
    for place in places:
        truth[place] = 1
    components, number = ndimage.label(truth, structure=EVERYWHERE)
    lesions = resample_lesions(truth, plan)
    assert len(lesions) == number
    assert all(lesion.mask_IJK.any() for lesion in lesions)
    label = painted(truth, plan)
    new = np.argwhere(label) * plan.spacing_mm
    turned = to_ras_order(components, plan.axis, plan.flipped)
    for component in range(1, number + 1):
        old = np.argwhere(turned == component) * plan.ras.spacing_mm
        apart = np.abs(new[:, None] - old[None]).max(axis=2).min()
        assert apart <= max(*plan.spacing_mm, *plan.ras.spacing_mm)


def test_label_values_are_kept_apart_even_where_lesions_touch():
    shape = (20, 60, 60)
    plan = plan_for(shape)
    truth = np.zeros(shape, dtype=np.uint8)
    truth[5:12, 5:30, 20:40] = 1
    truth[5:12, 30:55, 20:40] = 2
    label = painted(truth, plan)
    assert set(np.unique(label)) == {0, 1, 2}
    counts = np.bincount(label.ravel())
    assert counts[1] == pytest.approx(counts[2], rel=0.2)
    assert len(resample_lesions(truth, plan)) == 2


def test_an_empty_mask_has_no_lesion():
    plan = plan_for((6, 20, 20))
    assert resample_lesions(np.zeros((6, 20, 20), dtype=np.uint8), plan) == []


def test_a_crop_cuts_and_counts_what_lies_outside():
    shape = (20, 60, 60)
    plan = plan_for(shape)
    truth = np.zeros(shape, dtype=np.uint8)
    truth[2:6, 5:15, 5:15] = 1
    truth[14:18, 45:55, 45:55] = 1
    lesions = resample_lesions(truth, plan)
    whole, _ = paint(lesions, (0, 0, 0), plan.shape)
    start, size = (1, 2, 3), (9, 12, 20)
    crop, outside = paint(lesions, start, size)
    np.testing.assert_array_equal(crop, whole[1:10, 2:14, 3:23])
    assert outside == 1
    assert crop.any()
