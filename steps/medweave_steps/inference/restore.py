"""Restoring the source grid: the probabilities are interpolated linearly, then decided (thresholds, or the most probable label).
Maps with values of their own (`restore_map`, `restore_image_map`) are interpolated linearly.

Interpolating the mask instead would leave the coarse grid's steps on the lesion's outline.
Outside the crop everything is background. Beyond the outermost voxel centers of the uncropped grid the probability is repeated,
as in resampling to that grid (see `io.geometry`). A voxel can belong to an output only next to a voxel of the network's grid that
does, so only the lesions' boxes, one voxel larger on every side, are computed; a test proves that the result equals that of the
whole volume.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ComponentFilter
from medweave_core.contracts.volume import VolumeInfo
from medweave_steps.inference.components import Box
from medweave_steps.inference.head import LabelArray, OutputHead
from medweave_steps.io.geometry import (
    interpolate_axis,
    interpolate_between,
    interpolation,
    ras_grid,
    resampled_shape,
    source_positions,
    to_ras_order,
)

FloatArray = npt.NDArray[np.float32]

MOST_VALUES = 2**24  # of all channels restored at once: 64 MiB


def restore_labels(
    probability_CIJK: FloatArray,
    info: VolumeInfo,
    head: OutputHead,
    filters: Sequence[ComponentFilter],
    *,
    boxes: Sequence[Box] | None = None,
) -> LabelArray:
    """Return the label map on the source grid: the probabilities of all channels are interpolated, then decided there.

    Args:
        probability_CIJK: float32 [C, I, J, K] on `info.grid`, in [0, 1], as `OutputHead.probabilities` returns it.
        info: geometry with the inverse transform to the source.
        head: the model's outputs, which decide about each voxel.
        filters: one for each output; the thresholds, in (0, 1), count.
        boxes: where an output has voxels; voxels outside all boxes are not restored. None for the whole volume.
    Returns:
        uint8 label values of shape `info.source_grid.shape`, in the source's axis order, C-contiguous.
    """
    if boxes is None:
        boxes = [(slice(0, info.grid.shape[0]), slice(0, info.grid.shape[1]), slice(0, info.grid.shape[2]))]
    label = np.zeros(info.source_grid.shape, dtype=np.uint8)
    label_IJK = label.transpose(info.source_axis)[tuple(slice(None, None, -1 if f else 1) for f in info.source_flipped)]
    assert np.shares_memory(label, label_IJK)
    uncropped = _uncropped_shape(info)
    for box in boxes:
        for part in _slabs(box, info, len(probability_CIJK)):
            axes = [_restore_axis(info, axis, part[axis], uncropped[axis]) for axis in range(3)]
            restored = np.stack(
                [
                    _restore_block(channel_IJK, info, axes, head.outside(channel))
                    for channel, channel_IJK in enumerate(probability_CIJK)
                ]
            )
            label_IJK[tuple(a.target for a in axes)] = head.label_map(head.masks(restored, filters))
    return label


def restore_map(map_IJK: FloatArray, info: VolumeInfo) -> FloatArray:
    """Return a map on the source grid: interpolated linearly, 0 outside the crop.

    Args:
        map_IJK: float32 [I, J, K] on `info.grid`.
        info: geometry with the inverse transform to the source, of a volume; for 2-D images see `restore_image_map`.
    Returns:
        float32 of shape `info.source_grid.shape`, in the source's axis order, C-contiguous.
    """
    restored = np.zeros(info.source_grid.shape, dtype=np.float32)
    restored_IJK = to_ras_order(restored, info.source_axis, info.source_flipped)
    assert np.shares_memory(restored, restored_IJK)
    uncropped, (i, j, k) = _uncropped_shape(info), info.grid.shape
    for part in _slabs((slice(0, i), slice(0, j), slice(0, k)), info, 1):
        axes = [_restore_axis(info, axis, part[axis], uncropped[axis]) for axis in range(3)]
        restored_IJK[tuple(a.target for a in axes)] = _restore_block(map_IJK, info, axes, 0.0)
    return restored


def restore_image_map(map_IJK: FloatArray, info: VolumeInfo) -> FloatArray:
    """Return a map of a 2-D image on the source grid, interpolated linearly.

    A prepared image lies in the middle of a black one, so its position in the source follows from the affines of both grids.

    Args:
        map_IJK: float32 [column, row, 1] on `info.grid`.
    Returns:
        float32 of shape `info.source_grid.shape`: [column, row, 1].
    """
    to_prepared = np.linalg.inv(np.asarray(info.grid.affine)) @ np.asarray(info.source_grid.affine)
    restored = map_IJK
    for axis in range(2):
        indices = np.arange(info.source_grid.shape[axis], dtype=np.float64)
        restored = interpolate_axis(restored, to_prepared[axis, axis] * indices + to_prepared[axis, 3], axis)
    return restored


def _slabs(box: Box, info: VolumeInfo, channels: int) -> Iterator[Box]:
    """Cut a box across its longest axis, so that large organs of many channels are restored in little memory."""
    sides = [part.stop - part.start for part in box]
    voxels = math.prod(sides) * info.grid.voxel_volume_mm3 / info.source_grid.voxel_volume_mm3 * channels
    axis = sides.index(max(sides))
    step = max(1, math.ceil(sides[axis] / math.ceil(voxels / MOST_VALUES)))
    for start in range(box[axis].start, box[axis].stop, step):
        parts = list(box)
        parts[axis] = slice(start, min(start + step, box[axis].stop))
        yield (parts[0], parts[1], parts[2])


def _uncropped_shape(info: VolumeInfo) -> tuple[int, int, int]:
    ras = ras_grid(info.source_grid, info.source_axis, info.source_flipped)
    return resampled_shape(ras.shape, ras.spacing_mm, info.grid.spacing_mm)


def _restore_block(probability_IJK: FloatArray, info: VolumeInfo, axes: Sequence[_Axis], outside: float) -> FloatArray:
    block = probability_IJK[
        tuple(slice(max(a.low, 0), min(a.high, n)) for a, n in zip(axes, info.grid.shape, strict=True))
    ]
    width = [(max(-a.low, 0), max(a.high - n, 0)) for a, n in zip(axes, info.grid.shape, strict=True)]
    block = np.pad(block, width, constant_values=np.float32(outside))
    for axis, a in enumerate(axes):
        block = interpolate_between(block, a.lower, a.upper, a.weight, axis)
    return block


class _Axis(NamedTuple):
    """The voxels `[low, high)` of the network's grid (below 0: outside the crop) that give source voxels, with weights."""

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
