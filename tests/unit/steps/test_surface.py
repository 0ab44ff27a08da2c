"""HD95 and NSD on masks that can be checked by head, and against MONAI."""

from __future__ import annotations

import math

import numpy as np
import pytest

from medweave_core.errors import UserInputError
from medweave_steps.metrics.surface import hd95_mm, nsd, surface_distances

SPACING_MM = (2.0, 0.7, 0.5)


def blob(seed: int) -> np.ndarray:
    """Some boxes at random, borders of the array included."""
    draw = np.random.default_rng(seed)
    array = np.zeros((12, 16, 18), bool)
    for _ in range(4):
        corner = [draw.integers(0, size - 3) for size in array.shape]
        array[tuple(slice(c, c + draw.integers(2, 8)) for c in corner)] = True
    return array


def test_two_voxels_three_apart_along_the_coarse_axis_are_six_mm_apart() -> None:
    predicted, reference = np.zeros((8, 8, 8), bool), np.zeros((8, 8, 8), bool)
    predicted[1, 4, 4] = reference[4, 4, 4] = True
    assert hd95_mm(predicted, reference, spacing_mm=SPACING_MM) == pytest.approx(6.0)
    assert nsd(predicted, reference, spacing_mm=SPACING_MM, tolerance_mm=5.9) == 0.0
    assert nsd(predicted, reference, spacing_mm=SPACING_MM, tolerance_mm=6.0) == 1.0


def test_the_inside_of_a_mask_is_no_surface() -> None:
    cube = np.zeros((9, 9, 9), bool)
    cube[2:7, 2:7, 2:7] = True
    distances = surface_distances(cube, cube, spacing_mm=(1, 1, 1))
    assert len(distances.to_reference_mm) == 5**3 - 3**3
    assert distances.to_reference_mm.max() == 0


def test_the_border_of_the_array_is_a_surface() -> None:
    everything = np.ones((5, 5, 5), bool)
    assert len(surface_distances(everything, everything, spacing_mm=(1, 1, 1)).to_reference_mm) == 5**3 - 3**3


@pytest.mark.parametrize("seed", range(6))
def test_equal_to_monai(seed: int) -> None:
    import torch
    from monai.metrics import compute_hausdorff_distance, compute_surface_dice

    predicted, reference = blob(seed), blob(seed + 100)
    one_hot = [torch.from_numpy(m)[None, None].float() for m in (predicted, reference)]
    expected = compute_hausdorff_distance(
        *one_hot, include_background=True, percentile=95, spacing=SPACING_MM
    ).item()  # fmt: skip
    assert hd95_mm(predicted, reference, spacing_mm=SPACING_MM) == pytest.approx(expected, abs=1e-4)
    for tolerance_mm in (0.6, 2.0):
        expected = compute_surface_dice(
            *one_hot, class_thresholds=[tolerance_mm], include_background=True, spacing=SPACING_MM
        ).item()  # fmt: skip
        ours = nsd(predicted, reference, spacing_mm=SPACING_MM, tolerance_mm=tolerance_mm)
        assert ours == pytest.approx(expected, abs=1e-6)


def test_memory_order_of_the_arrays_does_not_matter() -> None:
    predicted, reference = blob(1), blob(2)
    expected = hd95_mm(predicted, reference, spacing_mm=SPACING_MM)
    assert hd95_mm(np.asfortranarray(predicted), reference, spacing_mm=SPACING_MM) == expected


def test_empty_masks() -> None:
    full, empty = blob(0), np.zeros((12, 16, 18), bool)
    for pair in ((full, empty), (empty, full)):
        assert hd95_mm(*pair, spacing_mm=SPACING_MM) == math.inf
        assert nsd(*pair, spacing_mm=SPACING_MM, tolerance_mm=2.0) == 0.0
    assert math.isnan(hd95_mm(empty, empty, spacing_mm=SPACING_MM))
    assert math.isnan(nsd(empty, empty, spacing_mm=SPACING_MM, tolerance_mm=2.0))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(UserInputError, match="cannot be compared"):
        hd95_mm(blob(0), blob(0)[1:], spacing_mm=SPACING_MM)
