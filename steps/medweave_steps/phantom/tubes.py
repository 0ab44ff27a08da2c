"""Stamps many tapering tubes (vessels, bronchi, ribs) into a volume of coded depths, a bucket of equal boxes at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_steps.phantom.fields import CtGrid, Float

DEPTH_MIN_MM = -2.0  # code 0: at least this far outside every tube
DEPTH_MAX_MM = 4.0  # code 255
_CODES_PER_MM = 255.0 / (DEPTH_MAX_MM - DEPTH_MIN_MM)
_BOX_SIDES = np.array([2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024])
_CHUNK_VOXELS = 1 << 17  # candidates handled at once: the temporaries stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Tubes:
    """N straight tubes with linearly changing radius: start and end (N, 3) as x, y, z in mm, radii (N,) in mm."""

    start: Float
    end: Float
    start_radius: Float
    end_radius: Float

    @staticmethod
    def joined(*groups: Tubes) -> Tubes:
        """Return all tubes of several groups as one."""
        return Tubes(
            start=np.concatenate([g.start for g in groups]),
            end=np.concatenate([g.end for g in groups]),
            start_radius=np.concatenate([g.start_radius for g in groups]),
            end_radius=np.concatenate([g.end_radius for g in groups]),
        )

    @staticmethod
    def polyline(points_xyz_mm: NDArray[np.floating], radii_mm: NDArray[np.floating]) -> Tubes:
        """Return a chain through points (P, 3) with one radius per point."""
        points, radii = points_xyz_mm.astype(np.float32), radii_mm.astype(np.float32)
        return Tubes(start=points[:-1], end=points[1:], start_radius=radii[:-1], end_radius=radii[1:])

    def widened(self, factor: float, extra_mm: float) -> Tubes:
        """Return the same centrelines with radius * factor + extra."""
        return Tubes(
            start=self.start,
            end=self.end,
            start_radius=self.start_radius * np.float32(factor) + np.float32(extra_mm),
            end_radius=self.end_radius * np.float32(factor) + np.float32(extra_mm),
        )


def encode_depth(depth_mm: Float) -> NDArray[np.uint8]:
    """Return codes of depths in mm, clipped to the range of the codes."""
    codes = np.clip((depth_mm - DEPTH_MIN_MM) * np.float32(_CODES_PER_MM) + np.float32(0.5), 0, 255)
    return np.asarray(codes, np.uint8)


def decode_depth(code: NDArray[np.uint8]) -> Float:
    """Return the depth in mm (positive inside a tube) of stored codes."""
    return code.astype(np.float32) * np.float32(1 / _CODES_PER_MM) + np.float32(DEPTH_MIN_MM)


def partial_volume_radius(radius_mm: Float, edge_mm: float) -> Float:
    """Return the radius to draw so that a tube thinner than the blurred voxel keeps its cross-section.

    A linear edge of width w around a thin tube is a cone of height p = 0.5 + r / w and area p^3 w^2 pi / 3; the p that makes
    this pi r^2 replaces the true one until the cone reaches full height.
    """
    peak = np.cbrt(3 * radius_mm**2 / edge_mm**2)
    return np.where(peak < 1, np.minimum(radius_mm, edge_mm * (peak - 0.5)), radius_mm).astype(np.float32)


def stamp_tubes(
    depth_KJI: NDArray[np.uint8], grid: CtGrid, tubes: Tubes, *, edge_mm: float, z_squeeze: float = 1.0
) -> None:
    """Raise coded depths to those of the tubes, in place.

    Args:
        depth_KJI: codes as read by `decode_depth`, shape of the grid.
        grid: where the voxels are.
        tubes: what to stamp.
        edge_mm: width of the soft edge; voxels more than half of it outside are left alone.
        z_squeeze: z is multiplied by this before distances are taken; < 1 makes cross-sections taller (ribs).
    """
    scale = np.array([1, 1, z_squeeze], np.float32)
    spacing = np.array(grid.spacing_xyz_mm, np.float32) * scale
    origin = np.array(grid.origin_xyz_mm, np.float32) * scale
    start = (tubes.start * scale - origin) / spacing
    end = (tubes.end * scale - origin) / spacing
    first_radius = partial_volume_radius(tubes.start_radius, edge_mm)
    last_radius = partial_volume_radius(tubes.end_radius, edge_mm)
    reach = (np.maximum(np.maximum(first_radius, last_radius), 0) + edge_mm / 2)[:, None] / spacing
    low = np.ceil(np.minimum(start, end) - reach).astype(np.int32)
    high = np.floor(np.maximum(start, end) + reach).astype(np.int32)
    size = np.array(grid.shape_KJI[::-1], np.int32)
    low, high = np.maximum(low, 0), np.minimum(high, size - 1)
    side = high - low + 1
    keep = np.flatnonzero((side > 0).all(axis=1))
    box = np.minimum(_BOX_SIDES[np.searchsorted(_BOX_SIDES, np.maximum(side, 1))], size)
    keys = (box[:, 0] * 4096 + box[:, 1]) * 4096 + box[:, 2]
    flat = depth_KJI.reshape(-1)
    arrays = (tubes.start * scale, (tubes.end - tubes.start) * scale, first_radius, last_radius - first_radius)
    for key in np.unique(keys[keep]):
        members = keep[keys[keep] == key]
        shape_xyz = box[members[0]]
        step = max(1, _CHUNK_VOXELS // int(shape_xyz.prod()))
        for at in range(0, len(members), step):
            chosen = members[at : at + step]
            corner = np.minimum(low[chosen], size - shape_xyz)
            parts = tuple(array[chosen] for array in arrays)
            _stamp_boxes(flat, grid.shape_KJI, corner, shape_xyz, origin, spacing, parts, edge_mm)


def _stamp_boxes(
    flat: NDArray[np.uint8],
    shape_KJI: tuple[int, int, int],
    corner_xyz: NDArray[np.int32],
    shape_xyz: NDArray[np.int64],
    origin: Float,
    spacing: Float,
    parts: tuple[Float, ...],
    edge_mm: float,
) -> None:
    """Stamp B tubes whose boxes all have `shape_xyz`: one broadcast over (B, K, J, I)."""
    start, direction, radius, growth = parts
    squared: Float = np.zeros(1, np.float32)
    dot: Float = np.zeros(1, np.float32)
    flat_index: NDArray[np.int64] = np.zeros(1, np.int64)
    strides = (1, shape_KJI[2], shape_KJI[1] * shape_KJI[2])
    for axis in (0, 1, 2):
        index = corner_xyz[:, axis, None] + np.arange(shape_xyz[axis], dtype=np.int32)
        offset = index * spacing[axis] + origin[axis] - start[:, axis, None]
        view = [len(index), 1, 1, 1]
        view[3 - axis] = int(shape_xyz[axis])
        squared = squared + (offset * offset).reshape(view)
        dot = dot + (offset * direction[:, axis, None]).reshape(view)
        flat_index = flat_index + (index.astype(np.int64) * strides[axis]).reshape(view)
    length_squared = np.maximum((direction * direction).sum(axis=1), 1e-6)[:, None, None, None]
    along = np.clip(dot / length_squared, 0, 1)
    squared -= along * (2 * dot - along * length_squared)
    depth = radius[:, None, None, None] + along * growth[:, None, None, None]
    depth -= np.sqrt(np.maximum(squared, 0))
    near = depth > -edge_mm / 2
    np.maximum.at(flat, flat_index[near], encode_depth(depth[near]))
