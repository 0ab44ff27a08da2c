"""Functions of masks that all metrics share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple_mm
from medweave_core.errors import UserInputError

BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.intp]
FloatArray = npt.NDArray[np.float64]


def check_pair(predicted: npt.NDArray[Any], reference: npt.NDArray[Any]) -> None:
    """Refuse masks that cannot be compared voxel by voxel.

    Raises:
        UserInputError: shapes differ, or a mask is not bool; the message gives both.
    """
    if predicted.dtype == np.bool_ == reference.dtype and predicted.shape == reference.shape:
        return
    raise UserInputError(
        "the masks cannot be compared.",
        seen=f"{predicted.dtype} of shape {predicted.shape} and {reference.dtype} of shape {reference.shape}",
        expected="two boolean masks of the same shape, on the same grid",
        do="restore the predicted mask to the source grid, and compare `mask > 0`",
    )


def foreground(mask: BoolArray) -> IndexArray:
    """Return the ascending indices of the True voxels in the flattened (C order) mask; masks of lesions are sparse."""
    return np.flatnonzero(mask)


def ends(mask: BoolArray, voxels: IndexArray, *, axis: int) -> BoolArray:
    """Return for each of these foreground voxels whether its neighbor before or behind it on an axis is background or outside.

    Args:
        mask: bool array.
        voxels: flattened indices of foreground voxels, shape (n,).
    """
    flat = np.ascontiguousarray(mask).reshape(-1)
    stride, size = math.prod(mask.shape[axis + 1 :]), mask.shape[axis]
    place = voxels // stride % size
    # The clipping only keeps the index legal at the array's two ends, where the place on the axis has already decided.
    before = (place > 0) & flat[np.maximum(voxels - stride, 0)]
    behind = (place < size - 1) & flat[np.minimum(voxels + stride, flat.size - 1)]
    is_end: BoolArray = ~(before & behind)
    return is_end


def positions_mm(flat: IndexArray, shape: tuple[int, ...], spacing_mm: Triple_mm) -> FloatArray:
    """Return centers of voxels in mm, shape (n, 3), measured from the first voxel along the array's axes."""
    index = np.stack(np.unravel_index(flat, shape), axis=1).astype(np.float64)
    centres: FloatArray = index * np.asarray(spacing_mm, dtype=np.float64)
    return centres
