"""Series of one case on different grids: which grids are equal, and linear resampling to the grid of the first channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid
from medweave_steps.io.geometry import FloatArray, corners_apart_mm
from medweave_steps.runtime.imports import require

SAME_PLACE_VOXELS = 0.1  # share of a voxel by which grids may differ and count as equal: rounding in headers
_HALF_VOXEL = 0.5 + 1e-6
_SAMPLES = 24  # points along each axis that estimate the covered share


def is_same_grid(first: Grid, second: Grid) -> bool:
    """Return True if the voxels of two series are at the same places."""
    if first.shape != second.shape:
        return False
    return corners_apart_mm(first, second) <= SAME_PLACE_VOXELS * min(second.spacing_mm)


def resampled_planes(
    volume: FloatArray, source: Grid, target: Grid, indices: Iterable[int], *, outside: float
) -> Iterator[FloatArray]:
    """Yield planes of the target grid, interpolated linearly from a volume on another grid, which may be oblique to it.

    Nothing is smoothed before, as in `preprocess`.

    Args:
        volume: float32, on `source`.
        indices: planes along the first axis of `target`.
        outside: value of voxels whose center is outside of the source's voxels.
    Yields:
        float32 [row, column].
    """
    ndimage = require("scipy.ndimage", extra="dicom")
    matrix = _to_source(source, target)
    _, rows, columns = target.shape
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    in_plane = matrix[:3, 1, None, None] * row + matrix[:3, 2, None, None] * column + matrix[:3, 3, None, None]
    for index in indices:
        places = in_plane + (matrix[:3, 0] * index)[:, None, None]
        plane = np.empty((rows, columns), dtype=np.float32)
        ndimage.map_coordinates(volume, places, output=plane, order=1, mode="nearest")
        plane[~_is_inside(places, source)] = outside
        yield plane


def covered_share(source: Grid, target: Grid) -> float:
    """Return the share of a grid that lies inside the voxels of another, from 0 to 1, estimated at regular points."""
    axes = [np.linspace(0, n - 1, min(n, _SAMPLES)) for n in target.shape]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
    matrix = _to_source(source, target)
    return float(_is_inside(matrix[:3, :3] @ points + matrix[:3, 3:], source).mean())


def _to_source(source: Grid, target: Grid) -> npt.NDArray[np.float64]:
    """Return the matrix from indices of the target to indices of the source."""
    matrix: npt.NDArray[np.float64] = np.linalg.inv(np.asarray(source.affine)) @ np.asarray(target.affine)
    return matrix


def _is_inside(places: npt.NDArray[np.float64], grid: Grid) -> npt.NDArray[np.bool_]:
    sizes = np.asarray(grid.shape).reshape((3,) + (1,) * (places.ndim - 1))
    is_inside: npt.NDArray[np.bool_] = np.empty(places.shape[1:], dtype=np.bool_)
    np.all((places >= -_HALF_VOXEL) & (places <= sizes - 1 + _HALF_VOXEL), axis=0, out=is_inside)
    return is_inside
