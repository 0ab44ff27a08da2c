"""The synthetic chest: what a trainer and a reader may rely on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from medweave_core.errors import UsageError
from medweave_steps.phantom.chest import ChestPhantom, ChestSpec, generate_chest
from medweave_steps.phantom.fields import CoarseGrid, CtGrid, interpolated_slices, parts_around
from medweave_steps.phantom.nodules import diameter_at_mm, longest_in_plane_mm
from medweave_steps.phantom.noise import KERNELS, noise_amplitude, noise_slices
from medweave_steps.phantom.tubes import Tubes, decode_depth, stamp_tubes
from medweave_steps.phantom.vessels import MURRAY_EXPONENT, grow_tree

TOUCHING = np.ones((3, 3, 3))
THUMBNAIL = ChestSpec(seed=3, matrix_size=96, in_plane_spacing_mm=(3.0, 3.0), slice_spacing_mm=(4.0, 4.0))
DEMO = ChestSpec(seed=0, matrix_size=256, in_plane_spacing_mm=(1.4, 1.5), slice_spacing_mm=(2.0, 2.0))


@pytest.fixture(scope="module")
def demo_cases() -> list[ChestPhantom]:
    return [generate_chest(replace(DEMO, seed=seed)) for seed in (1, 2)]


def hu_at(phantom: ChestPhantom, x_mm: float, y_mm: float, z_mm: float, half_width: int = 1) -> float:
    """Mean HU of the few voxels around a point."""
    i, j, k = np.rint((np.array([x_mm, y_mm, z_mm]) - phantom.origin_mm) / phantom.spacing_mm).astype(int)
    around = slice(-half_width, half_width + 1)
    box = tuple(slice(at + around.start, at + around.stop) for at in (k, j, i))
    return float(phantom.hu_KJI[box].mean())


# --- repeatability


@pytest.mark.slow
def test_same_seed_same_bits() -> None:
    first, second = generate_chest(THUMBNAIL), generate_chest(THUMBNAIL)
    assert np.array_equal(first.hu_KJI, second.hu_KJI)
    assert np.array_equal(first.label_KJI, second.label_KJI)
    assert first.nodules == second.nodules


@pytest.mark.slow
def test_other_seed_other_patient() -> None:
    first, second = generate_chest(THUMBNAIL), generate_chest(replace(THUMBNAIL, seed=4))
    assert first.nodules != second.nodules


@pytest.mark.slow
def test_another_grid_shows_the_same_patient() -> None:
    coarse = generate_chest(THUMBNAIL)
    finer = generate_chest(
        replace(THUMBNAIL, matrix_size=160, in_plane_spacing_mm=(2.1, 2.1), slice_spacing_mm=(2.5, 2.5))
    )
    assert coarse.hu_KJI.shape != finer.hu_KJI.shape
    for there, here in zip(coarse.nodules, finer.nodules, strict=True):
        assert (there.centre_mm, there.diameter_mm) == (here.centre_mm, here.diameter_mm)
        assert (there.attenuation, there.location) == (here.attenuation, here.location)
    for point in ((-85, 30, 40), (85, 30, 40), (20, -25, -60), (0, 52, -20)):  # lung, lung, heart, spine
        assert hu_at(coarse, *point) == pytest.approx(hu_at(finer, *point), abs=200), point


# --- labels and the nodule list


@pytest.mark.slow
def test_every_nodule_is_one_component(demo_cases: list[ChestPhantom]) -> None:
    for phantom in demo_cases:
        parts, count = ndimage.label(phantom.label_KJI, TOUCHING)
        assert count == len(phantom.nodules) >= 2
        voxels = sorted(np.bincount(parts.ravel())[1:])
        assert voxels == sorted(nodule.num_voxels for nodule in phantom.nodules)
        assert voxels[0] >= 1
        for nodule in phantom.nodules:
            assert nodule.volume_mm3 == pytest.approx(nodule.num_voxels * np.prod(phantom.spacing_mm))


@pytest.mark.slow
def test_diameter_is_what_a_reader_measures(demo_cases: list[ChestPhantom]) -> None:
    errors_in_pixels = []
    for phantom in demo_cases:
        parts, _ = ndimage.label(phantom.label_KJI, TOUCHING)
        boxes = ndimage.find_objects(parts)
        middles = np.array([[(side.start + side.stop - 1) / 2 for side in box[::-1]] for box in boxes])
        middles = middles * phantom.spacing_mm + phantom.origin_mm
        for nodule in phantom.nodules:
            distance = np.linalg.norm(middles - nodule.centre_mm, axis=1)
            part = int(np.argmin(distance))
            assert distance[part] < nodule.diameter_mm / 2
            measured = longest_in_plane_mm(parts[boxes[part]] == part + 1, phantom.spacing_mm[:2])
            errors_in_pixels.append((measured - nodule.diameter_mm) / phantom.spacing_mm[0])
    assert np.abs(errors_in_pixels).max() < 1.2  # a slice every 2 mm can miss the widest place by a little
    assert np.abs(errors_in_pixels).mean() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("slice_mm", [1.0, 2.5, 5.0])
def test_smallest_nodules_cover_a_voxel_on_every_grid(slice_mm: float) -> None:
    spec = replace(THUMBNAIL, slice_spacing_mm=(slice_mm, slice_mm), num_nodules=(6, 6), diameter_mm=(4.0, 4.0))
    phantom = generate_chest(spec)
    assert len(phantom.nodules) == 6
    assert all(nodule.num_voxels >= 1 for nodule in phantom.nodules)
    assert ndimage.label(phantom.label_KJI, TOUCHING)[1] == 6


@pytest.mark.slow
def test_nodules_outside_a_short_scan_are_not_listed() -> None:
    phantom = generate_chest(replace(THUMBNAIL, num_slices=8))
    assert phantom.hu_KJI.shape[0] == 8
    assert ndimage.label(phantom.label_KJI, TOUCHING)[1] == len(phantom.nodules) < 5


def test_attenuation_of_nodules_by_kind(demo_cases: list[ChestPhantom]) -> None:
    ranges = {"solid": (-400, 90), "part-solid": (-680, -100), "ground-glass": (-800, -450)}  # blurred at the rim
    for phantom in demo_cases:
        for nodule in phantom.nodules:
            low, high = ranges[nodule.attenuation]
            assert low < nodule.mean_hu < high, nodule


def test_diameters_lean_to_the_small() -> None:
    diameters = np.array([diameter_at_mm(quantile) for quantile in np.linspace(0, 1, 1001)])
    assert (diameters.min(), diameters.max()) == pytest.approx((4.0, 30.0))
    shares = np.histogram(diameters, [4, 6, 10, 16, 30.1])[0] / len(diameters)
    assert shares == pytest.approx([0.12, 0.43, 0.30, 0.15], abs=0.01)


@pytest.mark.slow
def test_cohort_holds_enough_lesions() -> None:
    counts, large = [], 0
    for seed in range(6):
        nodules = generate_chest(replace(THUMBNAIL, seed=1000 + seed)).nodules
        counts.append(len(nodules))
        large += sum(nodule.diameter_mm >= 6 for nodule in nodules)
    assert 2 <= min(counts) <= max(counts) <= 6
    assert large > 80 / 24 * 6  # 24 such patients are to hold more than 80


# --- anatomy and Hounsfield units


def test_tissues_have_their_hounsfield_units(demo_cases: list[ChestPhantom]) -> None:
    for phantom in demo_cases:
        assert hu_at(phantom, 0, 5, 30, half_width=1) < -850  # trachea
        assert 0 < hu_at(phantom, 22, -26, -62, half_width=3) < 90  # heart
        middle = phantom.hu_KJI[phantom.hu_KJI.shape[0] // 2]
        assert np.median(middle[:8]) == pytest.approx(-1000, abs=25)  # air
        lung = phantom.hu_KJI[(phantom.hu_KJI > -975) & (phantom.hu_KJI < -600)]
        assert -900 < np.median(lung) < -820
        assert (phantom.hu_KJI > 400).mean() > 0.003  # cortical bone
        soft = phantom.hu_KJI[(phantom.hu_KJI > -20) & (phantom.hu_KJI < 110)]
        assert 30 < np.median(soft) < 60


def test_lungs_are_two_and_of_adult_size(demo_cases: list[ChestPhantom]) -> None:
    for phantom in demo_cases:
        smooth = ndimage.uniform_filter(phantom.hu_KJI[::2, ::2, ::2].astype(np.float32), 3)
        parts, _ = ndimage.label(smooth < -600)
        size_l = np.bincount(parts.ravel()) * np.prod(phantom.spacing_mm) * 8 / 1e6
        outside = {int(parts[0, 0, 0]), int(parts[0, -1, 0]), 0}
        inside = sum(size for part, size in enumerate(size_l) if part not in outside and size > 0.3)
        assert 2.5 < inside < 7.5  # litres, both lungs; total lung capacity of adults


@pytest.mark.slow
def test_a_threshold_does_not_solve_it(demo_cases: list[ChestPhantom]) -> None:
    for phantom in demo_cases:
        dice, false_positives = threshold_baseline(phantom)
        assert dice < 0.4
        assert false_positives > 10


def threshold_baseline(phantom: ChestPhantom) -> tuple[float, int]:
    """Dice and false positives of: > -400 HU inside the filled lungs, components of 20 to 15,000 mm³."""
    voxel_mm3 = float(np.prod(phantom.spacing_mm))
    parts, _ = ndimage.label(phantom.hu_KJI < -400)
    is_lung = np.bincount(parts.ravel()) * voxel_mm3 > 2e5
    is_lung[[0, *np.unique(parts[:, 0]), *np.unique(parts[:, -1])]] = False
    filled = np.stack([ndimage.binary_fill_holes(plane) for plane in is_lung[parts]])
    candidates, _ = ndimage.label(filled & (phantom.hu_KJI > -400))
    volume = np.bincount(candidates.ravel()) * voxel_mm3
    retained = (volume >= 20) & (volume <= 15_000)
    retained[0] = False
    predicted, truth = retained[candidates], phantom.label_KJI > 0
    dice = 2 * float((predicted & truth).sum()) / float(predicted.sum() + truth.sum())
    return dice, int(retained.sum()) - len(np.unique(candidates[predicted & truth]))


@pytest.mark.slow
def test_padding_fills_the_outside_of_the_circle_only() -> None:
    plain, padded = generate_chest(THUMBNAIL), generate_chest(replace(THUMBNAIL, padding_value=-2000))
    assert (padded.hu_KJI[:, 0, 0] == -2000).all()
    inside = padded.hu_KJI != -2000
    assert inside[0].mean() == pytest.approx(np.pi / 4, abs=0.02)
    assert np.array_equal(padded.hu_KJI[inside], plain.hu_KJI[inside])
    assert plain.hu_KJI.min() >= -1024


@pytest.mark.parametrize(
    "change",
    [
        {"matrix_size": 32},
        {"in_plane_spacing_mm": (0.9, 0.6)},
        {"slice_spacing_mm": (1.0, 9.0)},
        {"num_nodules": (2, 40)},
        {"diameter_mm": (1.0, 30.0)},
        {"kernels": ("B70f",)},
        {"kernels": ()},
        {"num_slices": 2},
        {"seed": -1},
    ],
)
def test_impossible_specs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        replace(THUMBNAIL, **change)


# --- the parts, on arrays small enough to check by head


def one_tube(radius_mm: float, *, voxel_mm: float, edge_mm: float) -> np.ndarray[Any, Any]:
    """Depths around a tube along x through the middle of a 21 x 21 x 21 grid."""
    grid = CtGrid(origin_xyz_mm=(0, 0, 0), spacing_xyz_mm=(voxel_mm,) * 3, shape_KJI=(21, 21, 21))
    middle, length = 10 * voxel_mm, 20 * voxel_mm
    tube = Tubes.polyline(np.array([[-9.0, middle, middle], [length + 9, middle, middle]]), np.full(2, radius_mm))
    codes = np.zeros(grid.shape_KJI, np.uint8)
    stamp_tubes(codes, grid, tube, edge_mm=edge_mm)
    return codes


def test_tube_depth_falls_by_a_millimetre_per_millimetre() -> None:
    depth = decode_depth(one_tube(3.0, voxel_mm=1.0, edge_mm=2.0))
    assert depth[10, 10, 5] == pytest.approx(3.0, abs=0.02)
    assert depth[12, 10, 5] == pytest.approx(1.0, abs=0.02)
    assert depth[10, 14, 5] == pytest.approx(-2.0, abs=0.02)  # more than half an edge outside: untouched


@pytest.mark.parametrize("radius_mm", [0.4, 0.7, 1.0])
def test_thin_tube_keeps_its_cross_section(radius_mm: float) -> None:
    codes = one_tube(radius_mm, voxel_mm=0.25, edge_mm=2.0)[:, :, 10]
    share = np.where(codes > 0, np.clip(decode_depth(codes) / 2.0 + 0.5, 0, 1), 0)
    assert share.sum() * 0.25**2 == pytest.approx(np.pi * radius_mm**2, rel=0.15)


def test_fields_are_interpolated_linearly() -> None:
    coarse = CoarseGrid(origin_xyz_mm=(0, 0, 0), shape_KJI=(3, 4, 5), step_mm=4.0)
    z, y, x = coarse.axes_mm()
    plane = (2 * x + 3 * y - z)[None].astype(np.float32)
    grid = CtGrid(origin_xyz_mm=(1.0, 0.5, 0.0), spacing_xyz_mm=(2.0, 3.0, 1.5), shape_KJI=(5, 4, 7))
    fine_z, fine_y, fine_x = grid.axes_mm()
    expected = 2 * fine_x[None, None, :] + 3 * fine_y[None, :, None] - fine_z[:, None, None]
    whole = [(slice(0, 4), slice(0, 7))] * 5
    blocks = np.stack([block[0] for block in interpolated_slices(coarse, plane, grid, whole)])
    assert blocks == pytest.approx(expected, abs=1e-3)
    part = (slice(1, 3), slice(2, 7))
    parts = np.stack([block[0] for block in interpolated_slices(coarse, plane, grid, [part] * 5)])
    assert np.array_equal(parts, blocks[:, *part])
    points = np.array([[1.0, 0.5, 1.5]])
    assert coarse.sample(plane[0], points) == pytest.approx([2.0], abs=1e-3)


def test_outside_its_part_a_slice_takes_nothing_from_the_nodes() -> None:
    coarse = CoarseGrid(origin_xyz_mm=(0, 0, 0), shape_KJI=(4, 6, 7), step_mm=4.0)
    grid = CtGrid(origin_xyz_mm=(0.5, 1.0, 0.25), spacing_xyz_mm=(1.1, 1.3, 2.5), shape_KJI=(5, 15, 22))
    nodes = np.zeros(coarse.shape_KJI, np.bool_)
    nodes[1, 2:4, 3] = True
    field = nodes[None].astype(np.float32)
    whole = [(slice(0, 15), slice(0, 22))] * 5
    slices = interpolated_slices(coarse, field, grid, whole)
    for k, (block, part) in enumerate(zip(slices, parts_around(coarse, nodes, grid), strict=True)):
        assert block[0].any() == (k < 4)  # the fifth slice lies above the node's neighbour
        block[0][part] = 0
        assert not block.any()
        assert (part[0].stop - part[0].start) * (part[1].stop - part[1].start) < 15 * 22


def test_tree_reaches_every_target_with_murrays_law() -> None:
    rng = np.random.default_rng(5)
    targets = rng.uniform(-50, 50, (40, 3)).astype(np.float32)
    tree = grow_tree(np.zeros(3, np.float32), targets, 6.0, rng)
    assert len(tree.radius) == 2 * 40 - 1
    leaves = tree.radius < 6.0 * (1.5 / 40) ** (1 / MURRAY_EXPONENT)
    assert leaves.sum() == 40
    assert np.sort(tree.end[leaves], axis=0) == pytest.approx(np.sort(targets, axis=0), abs=1e-4)
    assert (tree.radius[leaves] ** MURRAY_EXPONENT).sum() == pytest.approx(6.0**MURRAY_EXPONENT, rel=1e-3)


def planes(pixel_mm: float, kernel: str, correlation: float) -> Iterator[np.ndarray[Any, Any]]:
    amplitude = noise_amplitude(128, pixel_mm, KERNELS[kernel])  # type: ignore[index]
    return noise_slices(40, amplitude, correlation, np.random.default_rng(1))


@pytest.mark.parametrize("kernel", ["soft", "medium", "sharp"])
def test_noise_has_unit_variance_and_the_kernels_peak(kernel: str) -> None:
    noise = np.stack(list(planes(0.7, kernel, 0.0)))
    assert noise.std() == pytest.approx(1.0, abs=0.02)
    power = (np.abs(np.fft.fft2(noise)) ** 2).mean(axis=0)
    frequency = np.fft.fftfreq(128, 0.7)
    radial = np.hypot(frequency[:, None], frequency[None, :])
    ring = np.round(radial / 0.04).astype(int)
    profile = np.bincount(ring.ravel(), power.ravel()) / np.bincount(ring.ravel())
    assert 0.04 * np.argmax(profile) == pytest.approx(KERNELS[kernel].noise_peak_per_mm, abs=0.06)  # type: ignore[index]
    assert profile[0] < 0.3 * profile.max()  # a band-pass


def test_neighbouring_slices_share_noise_as_asked() -> None:
    first, second, *_ = planes(0.7, "soft", 0.4)
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] == pytest.approx(0.4, abs=0.05)
