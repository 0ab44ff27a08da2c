"""Contours become the voxels whose centers they enclose, by the even-odd rule."""

from __future__ import annotations

import time

import numpy as np
import pytest
from matplotlib.path import Path as Outline

from medweave_steps.io.dicom.contours import ON_CONTOUR, count_crossed, rasterize
from support.structure_sets import circle, distance_to_path, keyhole, rectangle, star

SHAPE = (40, 37)


def voxels(*polygons: np.ndarray, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    filled = rasterize(polygons, shape)
    plane = np.zeros(shape, dtype=bool)
    plane[filled.rows, filled.columns] = filled.inside
    return plane


def centers(shape: tuple[int, int] = SHAPE) -> np.ndarray:
    return np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).reshape(-1, 2).astype(float)


def enclosed(polygon: np.ndarray) -> np.ndarray:
    """Return the centers inside a simple polygon, as matplotlib finds them."""
    return Outline(polygon).contains_points(centers()).reshape(SHAPE)


@pytest.mark.parametrize("seed", range(8))
def test_stars_at_any_place_equal_matplotlib(seed: int) -> None:
    rng = np.random.default_rng(seed)
    polygon = star(
        tuple(rng.uniform(10, 28, 2)), rng.uniform(4, 14), points=int(rng.integers(3, 9)), turn=rng.uniform(0, 6)
    )
    expected = enclosed(polygon) | (distance_to_path(polygon, SHAPE) <= ON_CONTOUR)
    np.testing.assert_array_equal(voxels(polygon), expected)


@pytest.mark.parametrize("seed", range(4))
def test_any_lines_count_by_the_even_odd_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    polygons = [rng.uniform(-3, 43, (5, 2)) for _ in range(3)]
    crossings = np.zeros(SHAPE, dtype=int)
    rows, columns = np.indices(SHAPE)
    for polygon in polygons:
        for (r0, c0), (r1, c1) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
            spans = (r0 > rows) != (r1 > rows)
            crossings += spans & (c0 + (rows - r0) * (c1 - c0) / (r1 - r0) < columns)
    clear = np.minimum.reduce([distance_to_path(polygon, SHAPE) for polygon in polygons]) > ON_CONTOUR
    np.testing.assert_array_equal(voxels(*polygons)[clear], (crossings % 2 == 1)[clear])


def test_vertices_count_below_the_size_of_a_voxel() -> None:
    assert voxels(rectangle((9.4, 9.4), (9.6, 20.6))).sum() == 0
    assert voxels(rectangle((9.6, 9.6), (10.4, 20.4))).sum() == 11
    assert voxels(rectangle((9.6, 9.6), (10.4, 10.4))).sum() == 1


def test_a_contour_inside_another_is_a_hole_and_one_inside_that_an_island() -> None:
    rings = [circle((20, 18), radius) for radius in (15.3, 10.2, 4.1)]
    inside = [enclosed(ring) for ring in rings]
    np.testing.assert_array_equal(voxels(*rings), inside[0] & ~inside[1] | inside[2])


def test_a_keyhole_contour_leaves_its_hole_out() -> None:
    outer, inner = circle((20.3, 18.1), 15.3), circle((20.4, 18.2), 7.2)
    channel = distance_to_path(np.stack((outer[0], inner[0])), SHAPE) <= ON_CONTOUR
    np.testing.assert_array_equal(voxels(keyhole(outer, inner)), enclosed(outer) & ~enclosed(inner) | channel)


def test_centers_on_the_path_belong_to_the_roi() -> None:
    # DICOM PS3.3, C.8.8.6.3; rt-utils writes contours through the centers of the outermost voxels.
    corners = rectangle((5, 7), (11, 20))
    expected = np.zeros(SHAPE, dtype=bool)
    expected[5:12, 7:21] = True
    np.testing.assert_array_equal(voxels(corners), expected)
    np.testing.assert_array_equal(voxels(corners + 1e-5), expected)
    np.testing.assert_array_equal(voxels(corners - 1e-5), expected)
    np.testing.assert_array_equal(voxels(corners[::-1]), expected)
    diagonal = np.asarray([(5.0, 5.0), (15.0, 15.0), (5.0, 15.0)])
    assert voxels(diagonal)[np.arange(5, 16), np.arange(5, 16)].all()


def test_contours_through_the_centers_of_border_voxels_give_the_mask_back() -> None:
    mask = np.zeros(SHAPE, dtype=bool)
    mask[4:30, 6:28] = True
    mask[12:20, 10:18] = False
    outer, around_hole = rectangle((4, 6), (29, 27)), rectangle((11, 9), (20, 18))
    np.testing.assert_array_equal(voxels(outer, around_hole), mask)


def test_neighbors_with_a_common_path_between_centers_share_no_voxel_and_leave_none_out() -> None:
    border = np.stack((np.linspace(2.3, 30.6, 12), 15 + 4 * np.sin(np.linspace(0, 5, 12))), axis=1)
    left = np.concatenate((border, [(30.6, 3.2), (2.3, 3.2)]))
    right = np.concatenate((border[::-1], [(2.3, 33.7), (30.6, 33.7)]))
    one, other = voxels(left), voxels(right)
    assert not (one & other).any()
    np.testing.assert_array_equal(one | other, voxels(rectangle((2.3, 3.2), (30.6, 33.7))))


def test_parts_outside_of_the_image_are_cut_off() -> None:
    assert voxels(rectangle((-9.5, -7.5), (99.5, 88.5))).all()
    assert not voxels(rectangle((-9.5, -7.5), (-2.5, -3.5))).any()


def test_only_contours_of_which_neither_contains_the_other_cross() -> None:
    outer, inner, far = circle((20, 18), 15.3), circle((20, 18), 7.2), rectangle((1.5, 1.5), (3.5, 3.5))
    assert count_crossed([outer, inner, far], SHAPE) == 0
    first, second = rectangle((2.5, 2.5), (9.5, 9.5)), rectangle((7.5, 7.5), (12.5, 12.5))
    assert count_crossed([first, second], SHAPE) == 4
    assert count_crossed([first, circle((6, 6), 0.2), rectangle((2.6, 2.6), (9.4, 9.4))], SHAPE) == 49


def test_thousands_of_contours_take_seconds() -> None:
    polygon = star((256, 256), 60, points=150)
    started = time.perf_counter()
    for _ in range(100):
        rasterize([polygon], (512, 512))
    assert time.perf_counter() - started < 2  # 1 ms each on a quiet machine
