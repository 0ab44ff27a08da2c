"""Channels of one case that lie on several grids: comparison of grids, and linear resampling to the grid of the first channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid
from medweave_steps.io.geometry import FloatArray, corners_apart_mm
from medweave_steps.runtime.imports import require

SAME_PLACE_VOXELS = 0.1  # share of a voxel by which two grids may differ: rounding in headers
_MOST_SAMPLES = 32  # points per axis at which two fields of view are compared


def is_same_grid(grid: Grid, first: Grid) -> bool:
    """Return whether two grids have one shape, and corners that differ by less than a tenth of a voxel."""
    if grid.shape != first.shape:
        return False
    return corners_apart_mm(grid, first) <= SAME_PLACE_VOXELS * min(first.spacing_mm)


def covered_share(grid: Grid, first: Grid) -> float:
    """Return the share of the field of view of `first` that `grid` covers, from 0 to 1, at up to 32 points per axis."""
    axes = [np.linspace(0, size - 1, min(size, _MOST_SAMPLES)) for size in first.shape]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
    matrix = _index_transform(grid, first)
    return float(_is_inside(matrix[:3, :3] @ points + matrix[:3, 3:], grid).mean())


def resample_to_grid(
    volume: FloatArray, source: Grid, target: Grid, *, planes: Iterable[int], plane_axis: int, outside: float
) -> Iterator[FloatArray]:
    """Interpolate a volume linearly at the voxel centers of another grid, which may be oblique to it.

    Nothing is smoothed before. A position within half a voxel of the border of the source gets the value of the border.

    Args:
        volume: float32 on the grid `source`.
        planes: indices along the plane axis of `target`, ascending.
        plane_axis: axis of `target` that counts planes: 0 for DICOM arrays, 2 for NIfTI.
        outside: value of the positions that the source does not cover.
    Yields:
        float32 with the other two axes of `target`, for each of `planes`; of NIfTI in Fortran order.
    """
    ndimage = require("scipy.ndimage", extra="preprocess")
    matrix = _index_transform(source, target)
    first, second = (axis for axis in range(3) if axis != plane_axis)
    rows, columns = (np.arange(target.shape[axis], dtype=np.float64) for axis in (first, second))
    in_plane = matrix[:3, first, None, None] * rows[:, None] + matrix[:3, second, None, None] * columns
    for index in planes:
        positions = in_plane + (matrix[:3, plane_axis] * index + matrix[:3, 3])[:, None, None]
        plane = ndimage.map_coordinates(volume, positions, order=1, mode="nearest", output=np.float32)
        plane[~_is_inside(positions, source)] = outside
        yield plane if plane_axis == 0 else np.asfortranarray(plane)


def resampled_text(cases_by_channel: Mapping[str, int], first: str) -> str:
    """Return which channels of how many cases are resampled: `channel ADC of 2 cases` and so on.

    Args:
        cases_by_channel: number of cases for each resampled channel.
        first: name of the first channel.
    """
    parts = [f"channel {name} of {n} {'case' if n == 1 else 'cases'}" for name, n in cases_by_channel.items()]
    return f"{', '.join(parts)}: resampled linearly to the grid of the first channel ({first})."


def _index_transform(source: Grid, target: Grid) -> npt.NDArray[np.float64]:
    """Return the 4 x 4 matrix from voxel indices of `target` to voxel indices of `source`."""
    matrix: npt.NDArray[np.float64] = np.linalg.inv(np.asarray(source.affine)) @ np.asarray(target.affine)
    return matrix


def _is_inside(positions: npt.NDArray[np.float64], grid: Grid) -> npt.NDArray[np.bool_]:
    """Return whether voxel positions, shape (3, ...), lie within half a voxel of the voxel centers of a grid."""
    limits = np.asarray(grid.shape, dtype=np.float64).reshape(3, *[1] * (positions.ndim - 1))
    tolerance = 0.5 + 1e-6
    inside = (positions >= -tolerance) & (positions <= limits - 1 + tolerance)
    inside_IJK: npt.NDArray[np.bool_] = np.logical_and.reduce(inside, axis=0)
    return inside_IJK
