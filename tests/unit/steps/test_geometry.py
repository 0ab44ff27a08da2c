"""io.geometry: axes, grids and interpolation, checked against the affine itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_steps.io.geometry import (
    affine_rows,
    from_ras_order,
    interpolate_axis,
    interpolation,
    lps_to_ras,
    ras_axes,
    ras_grid,
    resampled_grid,
    resampled_shape,
    source_positions,
    to_ras_order,
)

SHAPE = (3, 4, 5)
PERMUTATIONS = list(itertools.permutations(range(3)))
FLIPS = list(itertools.product((False, True), repeat=3))


def rotation(*degrees: float) -> np.ndarray:
    """Rotation about x, then y, then z."""
    matrix = np.eye(3)
    for axis, angle in enumerate(np.radians(degrees)):
        turn = np.eye(3)
        i, j = [other for other in range(3) if other != axis]
        turn[i, i] = turn[j, j] = np.cos(angle)
        turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
        matrix = turn @ matrix
    return matrix


def oriented_grid(permutation, flips, *, shape=SHAPE, spacing=(0.7, 1.1, 2.5), tilt=(0.0, 0.0, 0.0)) -> Grid:
    """A grid whose array axis `permutation[w]` runs along world axis w, backwards where `flips[w]`."""
    directions = np.zeros((3, 3))
    for world, source in enumerate(permutation):
        directions[world, source] = -1 if flips[world] else 1
    affine = np.eye(4)
    affine[:3, :3] = rotation(*tilt) @ directions @ np.diag(spacing)
    affine[:3, 3] = (-31.5, 12.25, 77.0)
    return Grid(shape=shape, affine=affine_rows(affine))


def world(grid: Grid, index) -> np.ndarray:
    affine = np.asarray(grid.affine)
    return affine[:3, :3] @ np.asarray(index, dtype=float) + affine[:3, 3]


@pytest.mark.parametrize("permutation", PERMUTATIONS)
@pytest.mark.parametrize("flips", FLIPS)
def test_axes_of_every_orientation_are_found(permutation, flips):
    assert ras_axes(oriented_grid(permutation, flips)) == (permutation, flips)
    assert ras_axes(oriented_grid(permutation, flips, tilt=(20, -15, 10))) == (permutation, flips)


@given(angles=st.tuples(*[st.floats(-180, 180)] * 3))
@settings(deadline=None)
def test_any_oblique_grid_gets_a_permutation(angles):
    grid = oriented_grid((0, 1, 2), (False, False, False), tilt=angles)
    axis, flipped = ras_axes(grid)
    assert sorted(axis) == [0, 1, 2]
    ras = np.asarray(ras_grid(grid, axis, flipped).affine)[:3, :3]
    assert all(ras[i, i] > -1e-9 for i in range(3)), "every axis runs towards R, A or S, not away from it"


@pytest.mark.parametrize("permutation", PERMUTATIONS)
@pytest.mark.parametrize("flips", FLIPS)
def test_a_voxel_keeps_its_place_in_the_patient(permutation, flips):
    grid = oriented_grid(permutation, flips, tilt=(5, 0, -8))
    ras = ras_grid(grid, *ras_axes(grid))
    numbers = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    turned = to_ras_order(numbers, *ras_axes(grid))
    assert turned.shape == ras.shape
    for index in [(0, 0, 0), (2, 3, 4), (1, 0, 3)]:
        (place,) = np.argwhere(turned == numbers[index])
        np.testing.assert_allclose(world(ras, place), world(grid, index), atol=1e-9)


@pytest.mark.parametrize("permutation", PERMUTATIONS)
@pytest.mark.parametrize("flips", FLIPS)
def test_there_and_back_is_the_same_array(permutation, flips):
    array = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    there = to_ras_order(array, permutation, flips)
    np.testing.assert_array_equal(from_ras_order(there, permutation, flips), array)
    assert np.shares_memory(there, array)


def test_lps_and_ras_are_each_others_inverse():
    matrix = np.asarray(oriented_grid((2, 0, 1), (True, False, True), tilt=(3, 4, 5)).affine)
    np.testing.assert_array_equal(lps_to_ras(lps_to_ras(matrix)), matrix)
    np.testing.assert_allclose(lps_to_ras(np.eye(4)) @ [1, 2, 3, 1], [-1, -2, 3, 1])


@given(
    size=st.integers(1, 700),
    old=st.floats(0.3, 5),
    new=st.floats(0.3, 5),
)
def test_new_centres_fill_the_span_of_the_old_ones(size, old, new):
    (count, _, _) = resampled_shape((size, 1, 1), (old, 1.0, 1.0), (new, 1.0, 1.0))
    span = (size - 1) * old
    assert (count - 1) * new <= span + 1e-5 * new
    assert count * new > span - 1e-5 * new


def test_spacings_that_divide_exactly_lose_no_voxel_to_rounding():
    # 299 * 0.7 / 0.1 is 2092.9999999999995 in binary floating point.
    assert resampled_shape((300, 300, 300), (0.7, 0.7, 0.7), (0.1, 0.7, 1.4)) == (2094, 300, 150)


def test_a_crop_of_the_new_grid_lies_where_its_voxels_were():
    grid = oriented_grid((1, 2, 0), (True, False, True), tilt=(4, 6, 1))
    ras = ras_grid(grid, *ras_axes(grid))
    start, spacing = (3, 1, 2), (2.0, 1.5, 1.0)
    crop = resampled_grid(ras, spacing, start=start, shape=(2, 2, 2))
    np.testing.assert_allclose(crop.spacing_mm, spacing)
    on_old_grid = [t * new / old for t, new, old in zip(start, spacing, ras.spacing_mm, strict=True)]
    np.testing.assert_allclose(world(crop, (0, 0, 0)), world(ras, on_old_grid), atol=1e-9)
    np.testing.assert_allclose(world(crop, (1, 1, 1)) - world(crop, (0, 0, 0)), rotation(4, 6, 1) @ spacing, atol=1e-9)


@given(st.integers(1, 40), st.lists(st.floats(-50, 90), min_size=1, max_size=30))
def test_interpolation_is_that_of_numpy_with_repeated_ends(size, positions):
    values = np.sin(np.arange(size) * 1.7)
    lower, upper, weight = interpolation(np.asarray(positions), size)
    assert ((lower >= 0) & (upper < size) & (weight >= 0) & (weight <= 1)).all()
    np.testing.assert_allclose(
        values[lower] * (1 - weight) + values[upper] * weight,
        np.interp(positions, np.arange(size), values),
        atol=1e-6,
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_interpolating_an_axis_leaves_the_others_and_the_input_alone(axis):
    array = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    retained = array.copy()
    result = interpolate_axis(array, np.asarray([0.0, 0.25, 2.5, 3.0, 99.0]), axis)
    moved = np.moveaxis(array, axis, 0)
    expected = np.stack([moved[0], 0.75 * moved[0] + 0.25 * moved[1], (moved[2] + moved[3]) / 2, moved[3], moved[-1]])
    np.testing.assert_allclose(result, np.moveaxis(expected, 0, axis), atol=1e-6)
    np.testing.assert_array_equal(array, retained)
    assert result.dtype == np.float32


@pytest.mark.parametrize(("permutation", "flips"), [((2, 1, 0), (True, True, False)), ((1, 0, 2), (False, True, True))])
def test_source_positions_lead_to_the_same_place_in_the_patient(permutation, flips):
    source = oriented_grid(permutation, flips, tilt=(2, 3, 4))
    ras = ras_grid(source, permutation, flips)
    crop = resampled_grid(ras, (1.3, 0.9, 2.2), start=(1, 2, 0), shape=(4, 4, 4))
    info = VolumeInfo(
        case_id="case-1", source_format="dicom", source_grid=source, source_sha256="", source_axis=permutation,
        source_flipped=flips, grid=crop, crop_start=(1, 2, 0), window_hu=(-1000.0, 400.0),
    )  # fmt: skip
    for index in [(0, 0, 0), (2, 1, 2)]:
        on_crop = [source_positions(info, axis)[index[axis]] for axis in range(3)]
        np.testing.assert_allclose(world(crop, on_crop), world(ras, index), atol=1e-9)
