"""Lung segmentation in different bodies: with table and arms, one lung, none, cut off, with gas elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from medweave_steps.preprocess.lungs import LungField, crop_box, find_lungs

SPACING = (4.0, 4.0, 4.0)
SHAPE = (110, 90, 80)  # 440 x 360 x 320 mm, R A S
AIR, LUNG, TISSUE, BONE = -1000.0, -850.0, 40.0, 400.0
RIGHT, LEFT = (150.0, 180.0, 160.0), (290.0, 180.0, 160.0)
LUNG_RADII = (52.0, 75.0, 120.0)


def axes(spacing=SPACING, shape=SHAPE):
    return np.meshgrid(*[np.arange(n) * s for n, s in zip(shape, spacing, strict=True)], indexing="ij", sparse=True)


def ellipsoid(centre_mm, radii_mm, **grid):
    parts = zip(axes(**grid), centre_mm, radii_mm, strict=True)
    return sum(((a - c) / r) ** 2 for a, c, r in parts) <= 1


def cylinder(centre_mm, radii_mm, **grid):
    """Along K, the whole height of the volume."""
    first, second, third = axes(**grid)
    inside = ((first - centre_mm[0]) / radii_mm[0]) ** 2 + ((second - centre_mm[1]) / radii_mm[1]) ** 2 <= 1
    return inside & (third > -1)


def body(**grid):
    """Air around an elliptic trunk of 340 x 240 mm."""
    volume = np.full(grid.get("shape", SHAPE), AIR, dtype=np.float32)
    volume[cylinder((220, 180), (170, 120), **grid)] = TISSUE
    return volume


def chest(*, right=True, left=True, noise_hu=25.0, seed=0, **grid):
    """A trunk with lungs and a trachea that runs out at the top."""
    volume = body(**grid)
    for centre, there in ((RIGHT, right), (LEFT, left)):
        if there:
            volume[ellipsoid(centre, LUNG_RADII, **grid)] = LUNG
    volume[cylinder((220, 190), (9, 9), **grid) & (axes(**grid)[2] > 200)] = AIR
    noise = np.random.default_rng(seed).normal(0, noise_hu, volume.shape)
    return np.clip(volume + noise, -1024, 3000).astype(np.float32)


def true_lungs(**grid):
    return ellipsoid(RIGHT, LUNG_RADII, **grid) | ellipsoid(LEFT, LUNG_RADII, **grid)


def covers(result: LungField, mask) -> float:
    return float((result.mask_IJK & mask).sum() / mask.sum())


def holds(box, mask, *, slack: int = 0) -> bool:
    places = np.argwhere(mask)
    low, high = places.min(axis=0), places.max(axis=0) + 1
    return bool((np.asarray(box[0]) <= low + slack).all() and (np.asarray(box[1]) >= high - slack).all())


def test_both_lungs():
    result = find_lungs(chest(), SPACING)
    assert result.kind == "lungs"
    assert covers(result, true_lungs()) > 0.99
    assert holds(result.box, true_lungs(), slack=1)
    assert result.lung_volume_ml == pytest.approx(true_lungs().sum() * 0.064, rel=0.15)


def test_the_crop_is_the_lungs_box_and_not_the_body():
    result = find_lungs(chest(), SPACING)
    size = np.subtract(result.box[1], result.box[0])
    width, depth = 290 + 52 - (150 - 52), 150
    np.testing.assert_allclose(size[:2] * 4, (width, depth), atol=12)
    assert size[2] * 4 == pytest.approx(240, abs=16), "slices that show the trachea only are left out"


@pytest.mark.slow
@pytest.mark.parametrize("spacing", [(2.0, 2.0, 2.0), (1.5, 1.5, 3.0), (1.0, 1.0, 1.0)])
def test_finer_grids_give_the_same_lungs(spacing):
    shape = tuple(int(n * 4 / s) for n, s in zip((110, 90, 40), spacing, strict=True))
    grid = {"spacing": spacing, "shape": shape}
    result = find_lungs(chest(noise_hu=10, **grid), spacing)
    assert result.kind == "lungs"
    assert result.mask_IJK.shape == shape
    assert covers(result, true_lungs(**grid)) > 0.98
    assert holds(result.box, true_lungs(**grid), slack=int(np.ceil(3 / min(spacing))))


def test_table_with_a_hollow_top_and_arms_at_the_side():
    volume = chest()
    first, second, _ = axes()
    table = (abs(first - 220) < 210) & (second > 10) & (second < 56)
    hollow = (abs(first - 220) < 202) & (second > 16) & (second < 50)
    volume[np.broadcast_to(table, SHAPE)] = 100.0
    volume[np.broadcast_to(hollow, SHAPE)] = AIR
    for side in (30, 410):
        volume[cylinder((side, 180), (25, 25))] = TISSUE
        volume[cylinder((side, 180), (8, 8))] = BONE
    plain, result = find_lungs(chest(), SPACING), find_lungs(volume, SPACING)
    assert result.kind == "lungs"
    assert result.box == plain.box


def test_arms_that_touch_the_trunk_enclose_outside_air():
    volume = chest()
    _, second, third = axes()
    for side in (45, 395):
        volume[cylinder((side, 180), (25, 25))] = TISSUE
        bridge = ellipsoid((side, 180, 160), (40, 12, 60)) | (ellipsoid((side, 230, 160), (60, 12, 60)))
        volume[bridge & (third > 110) & (third < 200) & (second > 0)] = TISSUE
    result = find_lungs(volume, SPACING)
    assert covers(result, true_lungs()) > 0.98
    assert holds(result.box, true_lungs(), slack=1)


@pytest.mark.parametrize("attenuation", [30.0, -600.0])
@pytest.mark.parametrize("diameter_mm", [8, 20, 30])
def test_nodules_on_the_pleura_are_inside(diameter_mm, attenuation):
    """A nodule grows from the pleura into the lung; its body belongs to the mask, however dense it is."""
    grid = {"spacing": (2.0, 2.0, 2.0), "shape": (125, 150, 120)}
    radius = diameter_mm / 2
    centre = (RIGHT[0] - LUNG_RADII[0] + 0.6 * radius, RIGHT[1], RIGHT[2])
    nodule = ellipsoid(centre, (radius,) * 3, **grid) & true_lungs(**grid)
    volume = chest(noise_hu=0, left=False, **grid)
    volume[nodule] = attenuation
    result = find_lungs(volume, grid["spacing"])
    assert covers(result, nodule) > 0.75
    assert holds(crop_box(result.box, grid["shape"], grid["spacing"], 10.0), nodule)


def test_vessels_and_a_nodule_deep_in_the_lung_are_filled():
    volume = chest(noise_hu=0)
    inside = ellipsoid(RIGHT, (15, 15, 15)) | ellipsoid(RIGHT, (5, 60, 5)) | ellipsoid(RIGHT, (5, 5, 100))
    volume[inside] = TISSUE
    result = find_lungs(volume, SPACING)
    assert covers(result, inside) == 1.0


@pytest.mark.parametrize("missing", ["right", "left"])
def test_a_collapsed_lung_keeps_the_field_of_view_wide(missing):
    result = find_lungs(chest(**{missing: False}), SPACING)
    assert result.kind == "one-lung"
    other = ellipsoid(RIGHT if missing == "right" else LEFT, LUNG_RADII)
    in_height = other & (np.arange(SHAPE[2]) >= result.box[0][2]) & (np.arange(SHAPE[2]) < result.box[1][2])
    assert holds(result.box, in_height), "the nodule may sit in the lung that is not aerated"
    assert covers(result, ellipsoid(LEFT if missing == "right" else RIGHT, LUNG_RADII)) > 0.98


def test_a_lung_cut_off_by_the_field_of_view_is_not_lost():
    volume = chest()[35:]  # the right chest wall is outside the image, and the right lung open to its border
    result = find_lungs(volume, SPACING)
    right = (true_lungs() & (np.arange(SHAPE[0]) < 55)[:, None, None])[35:]
    in_height = right & (np.arange(SHAPE[2]) >= result.box[0][2]) & (np.arange(SHAPE[2]) < result.box[1][2])
    assert result.kind in ("one-lung", "body")
    assert in_height.sum() > 0.9 * right.sum()
    assert holds(result.box, in_height, slack=1)


def test_lungs_cut_off_above_and_below():
    volume = chest()[:, :, 25:55]
    result = find_lungs(volume, SPACING)
    assert result.kind == "lungs"
    assert (result.box[0][2], result.box[1][2]) == (0, 30)
    assert covers(result, true_lungs()[:, :, 25:55]) > 0.98


def test_gas_in_stomach_and_bowel_is_no_lung():
    volume = chest()
    volume[ellipsoid((300, 200, 18), (45, 40, 16))] = AIR
    plain, result = find_lungs(chest(), SPACING), find_lungs(volume, SPACING)
    assert result.box == plain.box


def test_no_lungs_gives_the_body():
    volume = body()
    result = find_lungs(volume, SPACING)
    assert result.kind == "body"
    assert result.lung_volume_ml is None
    np.testing.assert_array_equal(result.mask_IJK, volume > -500)
    assert holds(result.box, volume > -500)
    assert result.box[0][0] > 0


@pytest.mark.parametrize("value", [AIR, TISSUE])
@pytest.mark.parametrize("shape", [(20, 20, 20), (2, 2, 2), (1, 5, 3)])
def test_volumes_without_a_body_never_fail(value, shape):
    result = find_lungs(np.full(shape, value, dtype=np.float32), SPACING)
    assert result.kind in ("body", "everything")
    assert result.box == ((0, 0, 0), shape)
    assert result.mask_IJK.shape == shape


def test_noise_never_fails():
    rng = np.random.default_rng(1)
    for scale in (50, 500, 2000):
        find_lungs(rng.normal(-500, scale, (40, 30, 20)).astype(np.float32), SPACING)


def test_memory_order_does_not_matter():
    volume = chest()
    one, other = find_lungs(volume, SPACING), find_lungs(np.asfortranarray(volume), SPACING)
    assert one.box == other.box
    np.testing.assert_array_equal(one.mask_IJK, other.mask_IJK)


def test_the_margin_is_in_mm_and_stays_in_the_volume():
    box = ((10, 2, 5), (20, 30, 40))
    assert crop_box(box, (100, 32, 41), (2.0, 2.0, 4.0), 10.0) == ((5, 0, 2), (25, 32, 41))
    assert crop_box(box, (100, 32, 41), (2.0, 2.0, 4.0), 0.0) == box
