"""Restoring the source grid: the probability is interpolated linearly, then thresholded.

Interpolating the mask instead would leave the coarse grid's steps on the lesion's outline.
Outside the crop the probability is 0. Beyond the outermost voxel centers of the uncropped grid it is repeated, as in resampling
to that grid (see `io.geometry`). A voxel can reach the threshold only next to a voxel of the network's grid that does, so only
the lesions' boxes, one voxel larger on every side, are computed; a test proves that the result equals that of the whole volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import VolumeInfo
from medweave_steps.inference.components import Box
from medweave_steps.io.geometry import interpolate_between, interpolation, ras_grid, resampled_shape, source_positions

FloatArray = npt.NDArray[np.float32]


def restore_mask(
    probability_IJK: FloatArray, info: VolumeInfo, *, threshold: float, boxes: Sequence[Box] | None = None
) -> npt.NDArray[np.uint8]:
    """Return the lesion mask on the source grid.

    Args:
        probability_IJK: float32 [I, J, K] on `info.grid`, in [0, 1].
        info: geometry with the inverse transform to the source.
        threshold: probability from which a voxel belongs to a lesion, in (0, 1).
        boxes: where `probability_IJK` reaches the threshold; voxels outside all boxes are not restored. None for the whole
            volume.
    Returns:
        uint8, 0 or 1, of shape `info.source_grid.shape`, in the source's axis order, C-contiguous.
    """
    if boxes is None:
        boxes = [(slice(0, info.grid.shape[0]), slice(0, info.grid.shape[1]), slice(0, info.grid.shape[2]))]
    mask = np.zeros(info.source_grid.shape, dtype=np.uint8)
    mask_IJK = mask.transpose(info.source_axis)[tuple(slice(None, None, -1 if f else 1) for f in info.source_flipped)]
    assert np.shares_memory(mask, mask_IJK)
    uncropped = _uncropped_shape(info)
    for box in boxes:
        _restore_box(probability_IJK, info, np.float32(threshold), box, uncropped, mask_IJK)
    return mask


def _uncropped_shape(info: VolumeInfo) -> tuple[int, int, int]:
    ras = ras_grid(info.source_grid, info.source_axis, info.source_flipped)
    return resampled_shape(ras.shape, ras.spacing_mm, info.grid.spacing_mm)


def _restore_box(
    probability_IJK: FloatArray,
    info: VolumeInfo,
    threshold: np.float32,
    box: Box,
    uncropped: tuple[int, int, int],
    mask_IJK: npt.NDArray[np.uint8],
) -> None:
    axes = [_restore_axis(info, axis, box[axis], uncropped[axis]) for axis in range(3)]
    block = probability_IJK[
        tuple(slice(max(a.low, 0), min(a.high, n)) for a, n in zip(axes, info.grid.shape, strict=True))
    ]
    block = np.pad(block, [(max(-a.low, 0), max(a.high - n, 0)) for a, n in zip(axes, info.grid.shape, strict=True)])
    for axis, a in enumerate(axes):
        block = interpolate_between(block, a.lower, a.upper, a.weight, axis)
    mask_IJK[tuple(a.target for a in axes)] |= block >= threshold


class _Axis(NamedTuple):
    """The voxels `[low, high)` of the network's grid (below 0: zeros outside the crop) that give source voxels, with weights."""

    low: int
    high: int
    target: slice
    lower: npt.NDArray[np.intp]
    upper: npt.NDArray[np.intp]
    weight: FloatArray


def _restore_axis(info: VolumeInfo, axis: int, box: slice, uncropped: int) -> _Axis:
    start = info.crop_start[axis]
    low, high = max(box.start - 1, -start), min(box.stop + 1, uncropped - start)
    # Indices of the uncropped grid, so that clamping happens at its ends and weights do not depend on the box.
    position = source_positions(info, axis) + start
    lower, upper, weight = interpolation(position, uncropped)
    index = np.flatnonzero((lower >= low + start) & (upper < high + start))
    target = slice(int(index[0]), int(index[-1]) + 1) if len(index) else slice(0, 0)
    shift = low + start
    return _Axis(low, high, target, lower[index] - shift, upper[index] - shift, weight[index])
