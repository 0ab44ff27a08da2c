"""Streaming resampling equals trilinear interpolation of the whole volume at exact physical positions."""

from __future__ import annotations

import itertools
import weakref

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from medweave_core.contracts.volume import Grid
from medweave_steps.io.geometry import affine_rows, resampled_grid, to_ras_order
from medweave_steps.preprocess.resample import needed_planes, plan_resampling, resample_planes

SHAPE = (17, 24, 20)
SPACING = (2.5, 0.8, 0.7)
# Source axis along R, A, S; read backwards; the axis along which planes arrive. DICOM axial, feet-first prone, sagittal, NIfTI.
ORIENTATIONS = {
    "axial": ((2, 1, 0), (True, True, False), 0),
    "feet-first": ((2, 1, 0), (False, True, True), 0),
    "sagittal": ((0, 2, 1), (False, False, True), 0),
    "coronal": ((2, 0, 1), (True, False, True), 0),
    "nifti-ras": ((0, 1, 2), (False, False, False), 2),
    "nifti-lps": ((0, 1, 2), (True, True, False), 2),
}


def grid_of(axis, flipped, *, tilt: float = 0.0) -> Grid:
    directions = np.zeros((3, 3))
    for world, source in enumerate(axis):
        directions[world, source] = -1 if flipped[world] else 1
    turn = np.eye(3)
    turn[1:, 1:] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    affine = np.eye(4)
    affine[:3, :3] = turn @ directions @ np.diag(SPACING)
    affine[:3, 3] = (11.0, -250.5, 40.25)
    return Grid(shape=SHAPE, affine=affine_rows(affine))


@pytest.fixture(scope="module")
def volume() -> np.ndarray:
    return np.random.default_rng(3).uniform(-1024, 2000, SHAPE).astype(np.float32)


def streamed(volume, grid, spacing, plane_axis):
    plan = plan_resampling(grid, spacing)
    stacked = np.moveaxis(volume, plane_axis, 0)
    planes = (np.ascontiguousarray(stacked[index]) for index in needed_planes(plan, plane_axis))
    return resample_planes(planes, plan, plane_axis=plane_axis), plan


@pytest.mark.parametrize("name", ORIENTATIONS)
@pytest.mark.parametrize("spacing", [(2.0, 2.0, 2.0), (0.5, 0.9, 1.0), (3.1, 0.8, 2.5)])
def test_equals_interpolation_in_patient_space(volume, name, spacing):
    axis, flipped, plane_axis = ORIENTATIONS[name]
    grid = grid_of(axis, flipped, tilt=0.2)
    resampled, plan = streamed(volume, grid, spacing, plane_axis)
    new = resampled_grid(plan.ras, spacing, start=(0, 0, 0), shape=plan.shape)
    assert resampled.shape == plan.shape
    assert resampled.dtype == np.float32
    indices = np.stack(np.meshgrid(*map(np.arange, plan.shape), indexing="ij")).reshape(3, -1)
    in_patient = np.asarray(new.affine) @ np.vstack([indices, np.ones(indices.shape[1])])
    on_source = np.linalg.inv(np.asarray(grid.affine)) @ in_patient
    expected = map_coordinates(volume.astype(np.float64), on_source[:3], order=1, mode="nearest").reshape(plan.shape)
    assert np.abs(resampled - expected).max() < 1e-2


@pytest.mark.parametrize("name", ["axial", "nifti-lps"])
def test_equals_monai_on_the_same_grid(volume, name):
    import torch
    from monai.data import MetaTensor
    from monai.transforms import SpatialResample

    axis, flipped, plane_axis = ORIENTATIONS[name]
    grid, spacing = grid_of(axis, flipped), (2.0, 1.5, 1.1)
    resampled, plan = streamed(volume, grid, spacing, plane_axis)
    new = resampled_grid(plan.ras, spacing, start=(0, 0, 0), shape=plan.shape)
    image = MetaTensor(torch.from_numpy(volume[None].copy()), affine=torch.tensor(grid.affine, dtype=torch.float64))
    transform = SpatialResample(mode="bilinear", padding_mode="border", align_corners=True, dtype=torch.float64)
    expected = transform(image, dst_affine=torch.tensor(new.affine, dtype=torch.float64), spatial_size=plan.shape)
    assert np.abs(resampled - expected.numpy()[0]).max() < 1e-2


def test_the_same_spacing_only_turns_the_volume(volume):
    axis, flipped, plane_axis = ORIENTATIONS["feet-first"]
    grid = grid_of(axis, flipped)
    spacing = tuple(SPACING[source] for source in axis)
    resampled, _ = streamed(volume, grid, spacing, plane_axis)
    np.testing.assert_allclose(resampled, to_ras_order(volume, axis, flipped), atol=1e-3)


@pytest.mark.parametrize("spacing", [(9.0, 9.0, 90.0), (0.3, 40.0, 7.5)])
def test_extreme_spacings(volume, spacing):
    axis, flipped, plane_axis = ORIENTATIONS["axial"]
    resampled, _ = streamed(volume, grid_of(axis, flipped), spacing, plane_axis)
    assert np.isfinite(resampled).all()
    assert resampled[0, 0, 0] == pytest.approx(volume[0, -1, -1])


def test_planes_are_not_kept(volume):
    """At most the plane in hand and the one being made are alive: memory does not grow with the number of slices."""
    axis, flipped, _ = ORIENTATIONS["axial"]
    plan = plan_resampling(grid_of(axis, flipped), (1.0, 1.0, 1.0))
    alive: list[weakref.ref] = []
    most = 0

    def planes():
        nonlocal most
        for plane in volume:
            copy = plane.copy()
            alive.append(weakref.ref(copy))
            most = max(most, sum(ref() is not None for ref in alive))
            yield copy
            del copy

    resample_planes(planes(), plan, plane_axis=0)
    assert len(alive) == SHAPE[0]
    assert most <= 2


def test_every_orientation_of_the_same_body_gives_the_same_volume(volume):
    """A body scanned head first and feet first is the same body afterwards."""
    results = []
    for axis, flipped in itertools.islice(((a, f) for a, f, _ in ORIENTATIONS.values()), 2):
        grid = grid_of(axis, flipped)
        plan = plan_resampling(grid, (1.4, 1.6, 2.5))
        body = np.moveaxis(to_ras_order(volume, *ORIENTATIONS["axial"][:2]), 0, 0)
        source = np.empty(SHAPE, dtype=np.float32)
        to_ras_order(source, axis, flipped)[...] = body
        results.append(resample_planes((source[i] for i in needed_planes(plan, 0)), plan, plane_axis=0))
    np.testing.assert_allclose(results[0], results[1], atol=1e-2)


@pytest.mark.parametrize("name", ["axial", "feet-first"])
def test_planes_between_the_new_ones_are_not_asked_for(name):
    """1 mm slices on a 2 mm grid: every second one, whatever rounding does to the spacing."""
    axis, flipped, _ = ORIENTATIONS[name]
    grid = grid_of(axis, flipped, tilt=0.3)
    affine = np.asarray(grid.affine)
    affine[:3, 0] *= 1.0000000001 / SPACING[0]
    plan = plan_resampling(Grid(shape=(301, 20, 20), affine=affine_rows(affine)), (2.0, 2.0, 2.0))
    assert needed_planes(plan, 0) == list(range(0, 301, 2))


def test_every_new_plane_gets_its_full_weight():
    """Constant in, constant out, for spacings that fall anywhere between the planes."""
    axis, flipped, plane_axis = ORIENTATIONS["axial"]
    constant = np.full(SHAPE, 1000.0, dtype=np.float32)
    for spacing in np.linspace(0.4, 6.0, 57):
        resampled, _ = streamed(constant, grid_of(axis, flipped), (1.0, 1.0, float(spacing)), plane_axis)
        assert np.abs(resampled - 1000).max() < 1e-2
