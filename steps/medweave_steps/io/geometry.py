"""From source voxels to the network's grid and back: exact, separable, trilinear.

Convention: a voxel index names a voxel center. Resampling keeps the first voxel center of the RAS-ordered source where it is and
steps by the new spacing, so coordinate `t` on the new axis is coordinate `t * spacing / source_spacing` on the old one.
Values beyond the last center repeat it (border padding), as `monai.transforms.SpatialResample(padding_mode="border")` does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import AffineRows, Grid, Triple, Triple_mm, VolumeInfo

FloatArray = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]

_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def affine_rows(matrix: AnyArray) -> AffineRows:
    """Return a 4 x 4 matrix as nested tuples of floats."""
    rows = [tuple(float(x) for x in row) for row in np.asarray(matrix, dtype=np.float64)]
    return (rows[0], rows[1], rows[2], rows[3])  # type: ignore[return-value]


def lps_to_ras(matrix: AnyArray) -> AnyArray:
    """Return an affine into DICOM's patient system (LPS, mm) as one into RAS, mm."""
    return _LPS_TO_RAS @ np.asarray(matrix, dtype=np.float64)


def corners_apart_mm(first: Grid, second: Grid) -> float:
    """Return the largest distance between equal corners of two grids of one shape, mm."""
    corners = np.asarray([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=np.float64)
    corners[:, :3] *= np.asarray(second.shape) - 1
    apart = corners @ (np.asarray(first.affine) - np.asarray(second.affine)).T
    return float(np.linalg.norm(apart[:, :3], axis=1).max())


def ras_axes(grid: Grid) -> tuple[Triple, tuple[bool, bool, bool]]:
    """Return which source axis runs closest to Right, Anterior, Superior, and whether each of these must be reversed.

    The axes are assigned greedily by the largest direction cosine, so that oblique grids get a permutation too.
    """
    affine = np.asarray(grid.affine)[:3, :3]
    cosines = affine / np.linalg.norm(affine, axis=0)
    axis, flipped = [0, 0, 0], [False, False, False]
    left = np.abs(cosines)
    for _ in range(3):
        world, source = np.unravel_index(int(np.argmax(left)), (3, 3))
        axis[world], flipped[world] = int(source), bool(cosines[world, source] < 0)
        left[world, :] = -1
        left[:, source] = -1
    return (axis[0], axis[1], axis[2]), (flipped[0], flipped[1], flipped[2])


def along_ras(grid: Grid) -> tuple[Triple_mm, Triple]:
    """Return spacing in mm and number of voxels of a source grid along the axes closest to Right, Anterior, Superior."""
    (a, b, c), _ = ras_axes(grid)
    spacing, shape = grid.spacing_mm, grid.shape
    return (spacing[a], spacing[b], spacing[c]), (shape[a], shape[b], shape[c])


def to_ras_order(array: AnyArray, axis: Triple, flipped: tuple[bool, bool, bool]) -> AnyArray:
    """Return a view of a source array with axes I, J, K."""
    slices = tuple(slice(None, None, -1 if flip else 1) for flip in flipped)
    return array.transpose(axis)[slices]


def from_ras_order(array_IJK: AnyArray, axis: Triple, flipped: tuple[bool, bool, bool]) -> AnyArray:
    """Return the inverse of `to_ras_order`: a view in the source's axis order."""
    slices = tuple(slice(None, None, -1 if flip else 1) for flip in flipped)
    return array_IJK[slices].transpose(tuple(int(i) for i in np.argsort(axis)))


def ras_grid(grid: Grid, axis: Triple, flipped: tuple[bool, bool, bool]) -> Grid:
    """Return the grid of `to_ras_order`'s result."""
    affine = np.asarray(grid.affine, dtype=np.float64)
    moved = np.eye(4)
    origin = affine[:3, 3].copy()
    for target, source in enumerate(axis):
        column = affine[:3, source]
        if flipped[target]:
            origin += column * (grid.shape[source] - 1)
            column = -column
        moved[:3, target] = column
    moved[:3, 3] = origin
    shape = tuple(grid.shape[source] for source in axis)
    return Grid(shape=(shape[0], shape[1], shape[2]), affine=affine_rows(moved))


def resampled_shape(shape: Triple, spacing_mm: Triple_mm, target_spacing_mm: Triple_mm) -> Triple:
    """Return the number of new voxel centers that fit between the first and the last old center, per axis."""
    sizes = [
        math.floor((n - 1) * old / new + 1e-6) + 1
        for n, old, new in zip(shape, spacing_mm, target_spacing_mm, strict=True)
    ]
    return (sizes[0], sizes[1], sizes[2])


def resampled_grid(ras: Grid, target_spacing_mm: Triple_mm, *, start: Triple, shape: Triple) -> Grid:
    """Return the grid of a crop of the resampled volume."""
    affine = np.asarray(ras.affine, dtype=np.float64).copy()
    scale = np.asarray(target_spacing_mm) / np.asarray(ras.spacing_mm)
    affine[:3, :3] *= scale
    affine[:3, 3] += affine[:3, :3] @ np.asarray(start, dtype=np.float64)
    return Grid(shape=shape, affine=affine_rows(affine))


def interpolation(positions: AnyArray, size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray]:
    """Return neighbors and weight for linear interpolation along one axis.

    Args:
        positions: fractional indices, shape (n,); values outside [0, size - 1] are clamped.
        size: voxels on the axis, at least 1.
    Returns:
        lower index, upper index, weight of the upper one as float32; each of shape (n,).
    """
    clamped = np.clip(np.asarray(positions, dtype=np.float64), 0, size - 1)
    lower = np.minimum(np.floor(clamped).astype(np.intp), max(size - 2, 0))
    weight = (clamped - lower).astype(np.float32)
    return lower, np.minimum(lower + 1, size - 1), weight


def interpolate_axis(array: FloatArray, positions: AnyArray, axis: int) -> FloatArray:
    """Return linear interpolation of an array at fractional indices of one axis, float32."""
    return interpolate_between(array, *interpolation(positions, array.shape[axis]), axis)


def interpolate_between(
    array: FloatArray, lower: npt.NDArray[np.intp], upper: npt.NDArray[np.intp], weight: FloatArray, axis: int
) -> FloatArray:
    """Return linear interpolation with the neighbors and weights that `interpolation` gave, float32."""
    shape = [1] * array.ndim
    shape[axis] = len(weight)
    low = np.take(array, lower, axis=axis)
    high = np.take(array, upper, axis=axis)
    high -= low
    high *= weight.reshape(shape)
    high += low
    return high


def source_positions(info: VolumeInfo, axis: int) -> npt.NDArray[np.float64]:
    """Return the fractional index, on the volume's axis, of each RAS-ordered source voxel of one axis.

    Positions below 0 or above the volume's last index lie outside the crop.
    """
    source = info.source_axis[axis]
    step = info.source_grid.spacing_mm[source] / info.grid.spacing_mm[axis]
    indices = np.arange(info.source_grid.shape[source], dtype=np.float64)
    positions: npt.NDArray[np.float64] = indices * step - info.crop_start[axis]
    return positions
