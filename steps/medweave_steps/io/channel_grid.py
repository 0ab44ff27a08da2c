"""Channels of one case that lie on several grids: comparison of grids, and linear resampling to the grid of the first channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid
from medweave_steps.io.geometry import FloatArray
from medweave_steps.runtime.imports import require

SAME_PLACE_VOXELS = 0.1  # share of a voxel by which two grids may differ: rounding in headers
_MOST_SAMPLES = 32  # points per axis at which two fields of view are compared


def is_same_grid(grid: Grid, first: Grid) -> bool:
    """Return whether two grids have one shape, and corners that differ by less than a tenth of a voxel."""
    if grid.shape != first.shape:
        return False
    corners = np.asarray([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=np.float64)
    corners[:, :3] *= np.asarray(first.shape) - 1
    apart = corners @ (np.asarray(grid.affine) - np.asarray(first.affine)).T
    return bool(np.linalg.norm(apart[:, :3], axis=1).max() <= SAME_PLACE_VOXELS * min(first.spacing_mm))


def covered_share(grid: Grid, first: Grid) -> float:
    """Return the share of the field of view of `first` that `grid` covers, from 0 to 1, at up to 32 points per axis."""
    axes = [np.linspace(0, size - 1, min(size, _MOST_SAMPLES)) for size in first.shape]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
    matrix = _index_transform(grid, first)
    return float(_is_inside(matrix[:3, :3] @ points + matrix[:3, 3:], grid).mean())


def resample_to_grid(
    volume: FloatArray, source: Grid, target: Grid, *, planes: Iterable[int], outside: float
) -> Iterator[FloatArray]:
    """Interpolate a volume linearly at the voxel centers of another grid.

    A position within half a voxel of the border of the source gets the value of the border.

    Args:
        volume: float32 [i, j, k] on the grid `source`.
        planes: indices along the third axis of `target`, ascending.
        outside: value of the positions that the source does not cover.
    Yields:
        float32 [i, j] for each of `planes`, in Fortran order as planes of NIfTI files.
    """
    ndimage = require("scipy.ndimage", extra="preprocess")
    matrix = _index_transform(source, target)
    rows, columns = (np.arange(size, dtype=np.float64) for size in target.shape[:2])
    in_plane = matrix[:3, :1, None] * rows[None, :, None] + matrix[:3, 1:2, None] * columns[None, None, :]
    for index in planes:
        positions = in_plane + (matrix[:3, 2] * index + matrix[:3, 3])[:, None, None]
        plane = ndimage.map_coordinates(volume, positions, order=1, mode="nearest", output=np.float32)
        plane[~_is_inside(positions, source)] = outside
        yield np.asfortranarray(plane)


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
    on_axis = (positions >= -tolerance) & (positions <= limits - 1 + tolerance)
    inside: npt.NDArray[np.bool_] = np.logical_and.reduce(on_axis, axis=0)
    return inside
