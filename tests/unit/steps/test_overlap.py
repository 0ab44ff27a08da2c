"""Dice on masks that can be checked by head."""

from __future__ import annotations

import math

import numpy as np
import pytest

from medweave_core.errors import UserInputError
from medweave_steps.metrics.overlap import dice


def mask(*voxels: tuple[int, int, int]) -> np.ndarray:
    array = np.zeros((4, 4, 4), bool)
    for voxel in voxels:
        array[voxel] = True
    return array


def test_two_voxels_in_common_of_two_and_four_give_two_thirds() -> None:
    predicted = mask((0, 0, 0), (0, 0, 1))
    reference = mask((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1))
    assert dice(predicted, reference) == pytest.approx(4 / 6)


def test_equal_masks_give_one_and_disjoint_masks_zero() -> None:
    assert dice(mask((1, 1, 1)), mask((1, 1, 1))) == 1.0
    assert dice(mask((1, 1, 1)), mask((2, 2, 2))) == 0.0


def test_one_empty_mask_gives_zero_and_two_give_nan() -> None:
    assert dice(mask(), mask((1, 1, 1))) == 0.0
    assert dice(mask((1, 1, 1)), mask()) == 0.0
    assert math.isnan(dice(mask(), mask()))


@pytest.mark.parametrize("other", [np.zeros((4, 4, 3), bool), np.zeros((4, 4, 4), np.uint8)])
def test_masks_that_cannot_be_compared_are_refused_with_both_shapes(other: np.ndarray) -> None:
    with pytest.raises(UserInputError) as error:
        dice(other, mask())
    assert str(other.dtype) in error.value.seen
    assert str(other.shape) in error.value.seen
    assert "(4, 4, 4)" in error.value.seen


def test_it_is_monais() -> None:
    import torch
    from monai.metrics import DiceMetric

    rng = np.random.default_rng(5)
    pairs = [rng.random((2, 9, 8, 7)) < share for share in (0.02, 0.3, 0.8)]
    monais = DiceMetric(include_background=True, reduction="none")
    for predicted, reference in pairs:
        theirs = monais(torch.from_numpy(predicted)[None, None], torch.from_numpy(reference)[None, None])
        assert dice(predicted, reference) == pytest.approx(float(theirs), abs=1e-6)
