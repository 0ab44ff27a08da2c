"""The voxel size that fits a set of scans: the median of each axis, or less along an axis of few thick slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple, Triple_mm

ANISOTROPY = 3
"""An axis is coarse if its median spacing is more than this factor above the others' and its number of voxels as far below."""
PERCENTILE = 10


def target_spacing_mm(spacings_mm: Sequence[Triple_mm], shapes: Sequence[Triple]) -> Triple_mm:
    """Return nnU-Net's target spacing of a set of scans, mm.

    Args:
        spacings_mm: of each scan, along axes that are the same for all.
        shapes: of each scan along these axes, voxels.
    Source: Isensee et al. 2021, Nat Methods 18:203, supplementary note 2 ("Target spacing"); the program nnU-Net v2
        in addition keeps the coarse axis no finer than the others.
    """
    spacings, sizes = np.array(spacings_mm, float), np.array(shapes, float)
    target, median_size = np.median(spacings, axis=0), np.median(sizes, axis=0)
    coarse = int(np.argmax(target))
    others = [axis for axis in range(3) if axis != coarse]
    largest_other = float(target[others].max())
    if target[coarse] > ANISOTROPY * largest_other and median_size[coarse] * ANISOTROPY < median_size[others].min():
        finer = float(np.percentile(spacings[:, coarse], PERCENTILE))
        target[coarse] = finer if finer >= largest_other else largest_other
    return _triple(target)


def _triple(values: npt.NDArray[np.float64]) -> Triple_mm:
    i, j, k = (round(float(value), 4) for value in values)
    return (i, j, k)
