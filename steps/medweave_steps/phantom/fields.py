"""Smooth scalar fields on a coarse patient grid, and their exact linear interpolation to points and to CT slices.

Axes everywhere: KJI = (slice, row, column) = (z feet to head, y anterior to posterior, x patient right to left), the
layout of an axial DICOM series; points are (x, y, z) in mm in the patient frame (LPS), carina at the origin.
Distances are signed in mm and positive inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Float = NDArray[np.float32]
Part = tuple[slice, slice]
"""Rows and columns of a slice."""

MAX_DISTANCE_MM = 40.0  # distances are clipped to this; larger ones are not used


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseGrid:
    """Isotropic grid covering the patient; independent of the CT grid, so that a seed keeps its anatomy."""

    origin_xyz_mm: tuple[float, float, float]
    shape_KJI: tuple[int, int, int]
    step_mm: float

    def axes_mm(self) -> tuple[Float, Float, Float]:
        """Return the axes z (K,1,1), y (1,J,1) and x (1,1,I) in mm, ready to broadcast."""
        x, y, z = (
            (origin + self.step_mm * np.arange(size)).astype(np.float32)
            for origin, size in zip(self.origin_xyz_mm, self.shape_KJI[::-1], strict=True)
        )
        return z[:, None, None], y[None, :, None], x[None, None, :]

    def sample(self, field_KJI: Float, points_xyz_mm: NDArray[np.floating]) -> Float:
        """Return the trilinear value of a field at points of shape (..., 3); points outside take the nearest edge value."""
        index = (points_xyz_mm - np.asarray(self.origin_xyz_mm, points_xyz_mm.dtype)) / self.step_mm
        coordinates = np.moveaxis(index[..., ::-1], -1, 0)
        sampled: Float = ndimage.map_coordinates(field_KJI, coordinates, order=1, mode="nearest", output=np.float32)
        return sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class CtGrid:
    """Voxel grid of the scan: center of voxel [0, 0, 0] in the patient frame, spacing along x, y, z, shape KJI."""

    origin_xyz_mm: tuple[float, float, float]
    spacing_xyz_mm: tuple[float, float, float]
    shape_KJI: tuple[int, int, int]

    def axes_mm(self) -> tuple[Float, Float, Float]:
        """Return the voxel centers along z, y and x as three vectors in mm."""
        x, y, z = (
            (origin + spacing * np.arange(size)).astype(np.float32)
            for origin, spacing, size in zip(self.origin_xyz_mm, self.spacing_xyz_mm, self.shape_KJI[::-1], strict=True)
        )
        return z, y, x


def _lerp_weights(positions_mm: Float, origin_mm: float, step_mm: float, size: int) -> tuple[NDArray[np.intp], Float]:
    position = np.clip((positions_mm - origin_mm) / step_mm, 0, size - 1)
    low = np.minimum(position.astype(np.intp), size - 2)
    return low, (position - low).astype(np.float32)


def _weights(coarse: CoarseGrid, grid: CtGrid) -> list[tuple[NDArray[np.intp], Float]]:
    """Return, along z, y and x, the coarse node before each CT slice, row or column, and the fraction of the way to the next."""
    return [
        _lerp_weights(positions, origin, coarse.step_mm, size)
        for positions, origin, size in zip(grid.axes_mm(), coarse.origin_xyz_mm[::-1], coarse.shape_KJI, strict=True)
    ]


def parts_around(coarse: CoarseGrid, nodes_KJI: NDArray[np.bool_], grid: CtGrid) -> list[Part]:
    """Return per CT slice the box outside which no pixel is interpolated from any of these nodes."""
    (low_k, _), (low_j, _), (low_i, _) = _weights(coarse, grid)
    cells = nodes_KJI[:-1] | nodes_KJI[1:]
    rows, columns = np.asarray(cells.any(axis=2)), np.asarray(cells.any(axis=1))
    rows, columns = (rows[:, :-1] | rows[:, 1:])[:, low_j], (columns[:, :-1] | columns[:, 1:])[:, low_i]
    return [(_span(rows[k]), _span(columns[k])) for k in low_k]


def _span(used: NDArray[np.bool_]) -> slice:
    cells = np.flatnonzero(used)
    return slice(int(cells[0]), int(cells[-1]) + 1) if len(cells) else slice(0, 1)


def interpolated_slices(coarse: CoarseGrid, fields_FKJI: Float, grid: CtGrid, parts: Sequence[Part]) -> Iterator[Float]:
    """Yield one (F, J, I) block per CT slice: all fields on a part of it, interpolated linearly.

    Rows come last because copying whole rows is what numpy does fastest; there is no BLAS call, hence the bits do not
    depend on the number of threads.
    """
    (all_k, frac_k), (all_j, frac_j), (all_i, frac_i) = _weights(coarse, grid)
    for k, frac, (rows, columns) in zip(all_k, frac_k, parts, strict=True):
        low_j, low_i = all_j[rows], all_i[columns]
        near = slice(low_j[0], low_j[-1] + 2)
        below, above = fields_FKJI[:, k, near], fields_FKJI[:, k + 1, near]
        plane = below + frac * (above - below)
        left, right = np.take(plane, low_i, axis=2), np.take(plane, low_i + 1, axis=2)
        plane = left + frac_i[columns] * (right - left)
        rise = np.diff(plane, axis=1)
        block = np.take(rise, low_j - low_j[0], axis=1)
        block *= frac_j[rows, None]
        block += np.take(plane, low_j - low_j[0], axis=1)
        yield block


def signed_distance(implicit_KJI: Float, step_mm: float) -> Float:
    """Return the first-order distance in mm to the zero level of a smooth implicit function, with the sign of the function."""
    slope_squared = np.zeros_like(implicit_KJI)
    for gradient in np.gradient(implicit_KJI, step_mm):
        slope_squared += gradient * gradient
    distance = implicit_KJI / np.sqrt(np.maximum(slope_squared, 1e-10))
    return np.clip(distance, -MAX_DISTANCE_MM, MAX_DISTANCE_MM).astype(np.float32)


def smooth_min(first: Float, second: Float, blend_mm: float) -> Float:
    """Return the intersection of two inside-positive distance fields with edges rounded over `blend_mm` (polynomial, Quilez)."""
    overlap = np.maximum(blend_mm - np.abs(first - second), 0)
    smooth: Float = np.minimum(first, second) - overlap * overlap / (4 * blend_mm)
    return smooth


def smooth_max(first: Float, second: Float, blend_mm: float) -> Float:
    """Return the union of two inside-positive distance fields with the crease filled over `blend_mm`."""
    return -smooth_min(-first, -second, blend_mm)


def capsule(
    axes_mm: tuple[Float, Float, Float],
    start: NDArray[np.floating],
    end: NDArray[np.floating],
    radii_mm: tuple[float, float],
) -> Float:
    """Return the distance field of a cone with round ends from `start` to `end` (x, y, z in mm)."""
    z, y, x = axes_mm
    direction = (end - start).astype(np.float32)
    length_squared = max(float(direction @ direction), 1e-6)
    dx, dy, dz = x - np.float32(start[0]), y - np.float32(start[1]), z - np.float32(start[2])
    along = np.clip((dx * direction[0] + dy * direction[1] + dz * direction[2]) / length_squared, 0, 1)
    squared = (dx - along * direction[0]) ** 2 + (dy - along * direction[1]) ** 2 + (dz - along * direction[2]) ** 2
    distance: Float = radii_mm[0] + along * np.float32(radii_mm[1] - radii_mm[0]) - np.sqrt(squared)
    return distance


def random_texture(shape_KJI: tuple[int, int, int], correlation_cells: float, rng: np.random.Generator) -> Float:
    """Return a Gaussian random field of mean 0 and variance 1 with a correlation length in grid cells."""
    white = rng.standard_normal(shape_KJI, dtype=np.float32)
    smooth = ndimage.gaussian_filter(white, correlation_cells, mode="wrap", truncate=2.5)
    smooth -= smooth.mean()
    scaled: Float = smooth / smooth.std()
    return scaled
