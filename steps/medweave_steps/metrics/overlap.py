"""Overlap of two masks, voxel by voxel."""

from __future__ import annotations

import math

import numpy as np

from medweave_steps.metrics.masks import BoolArray, check_pair


def dice(predicted: BoolArray, reference: BoolArray) -> float:
    """Return Dice coefficient: twice the voxels in common, over the voxels of both.

    Args:
        predicted, reference: bool arrays of one shape, on the same grid.
    Returns:
        Dice in [0, 1]; 0.0 if exactly one mask is empty, NaN if both are (there is nothing to overlap: count such cases apart).
    Raises:
        UserInputError: shapes differ or a mask is not bool.
    Source: Dice 1945, Ecology 26(3):297-302.
    """
    check_pair(predicted, reference)
    total = int(np.count_nonzero(predicted)) + int(np.count_nonzero(reference))
    return 2 * int(np.count_nonzero(predicted & reference)) / total if total else math.nan
