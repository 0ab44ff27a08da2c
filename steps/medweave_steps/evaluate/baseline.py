"""The baseline: a rule without learning on the same cases, to compare the network's figures with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import VolumeInfo
from medweave_steps.io import geometry
from medweave_steps.metrics.components import connected_components

BoolArray = npt.NDArray[np.bool_]


def threshold_mask(
    volume_IJK: npt.NDArray[np.float32],
    lung_IJK: BoolArray | None,
    *,
    threshold: float,
    volume_mm3: tuple[float, float],
    voxel_volume_mm3: float,
) -> BoolArray:
    """Return the baseline's mask: dense voxels inside the filled lungs, or bright MR voxels, in components of a lesion's size.

    Args:
        volume_IJK: HU or standard deviations on the prepared grid, shape (size_i, size_j, size_k).
        lung_IJK: lungs with their vessels and nodules filled in, same shape; None: the whole volume.
        threshold: lowest value of a lesion voxel.
        volume_mm3: smallest and largest volume of a component.
        voxel_volume_mm3: volume of a voxel of the prepared grid.
    Returns:
        bool array of the same shape.
    """
    dense = volume_IJK >= threshold
    if lung_IJK is not None:
        dense &= lung_IJK
    parts = connected_components(dense)
    size_mm3 = parts.num_voxels() * voxel_volume_mm3
    fits = (size_mm3 >= volume_mm3[0]) & (size_mm3 <= volume_mm3[1])
    mask = np.zeros(dense.size, np.bool_)
    mask[parts.voxels[fits[parts.labels]]] = True
    return mask.reshape(dense.shape)


def to_source_grid(mask_IJK: BoolArray, info: VolumeInfo) -> BoolArray:
    """Return a mask of the prepared grid on the grid of the source, each source voxel taking its nearest prepared voxel.

    Returns:
        bool array of shape `info.source_grid.shape` in source order; False outside the crop.
    """
    # In the source's order from the start, its last axis first: what grows the array most copies whole planes.
    restored: BoolArray = mask_IJK.transpose(tuple(int(i) for i in np.argsort(info.source_axis)))
    for place in (2, 1, 0):
        axis = info.source_axis.index(place)
        nearest = np.rint(geometry.source_positions(info, axis)).astype(np.intp)
        if info.source_flipped[axis]:
            nearest = nearest[::-1]
        last = restored.shape[place] - 1
        restored = np.take(restored, np.clip(nearest, 0, last), axis=place)
        shape = [1, 1, 1]
        shape[place] = len(nearest)
        restored &= ((nearest >= 0) & (nearest <= last)).reshape(shape)
    return restored
