"""Closed planar contours to voxels: the even-odd rule at voxel centers, with sub-pixel vertices.

Coordinates are (row, column) of the voxel grid; an integer is a voxel center.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Polygon = npt.NDArray[np.float64]
Plane = npt.NDArray[np.bool_]
_Indices = npt.NDArray[np.intp]

ON_CONTOUR = 1e-3  # voxels; a center at this distance or less lies on the contour: rounding of coordinates in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The voxels of an ROI in one slice.

    Attributes:
        rows, columns: part of the slice that contains them.
        inside: bool of the shape of that part.
    """

    rows: slice
    columns: slice
    inside: Plane


def rasterize(polygons: Sequence[Polygon], shape: tuple[int, int]) -> Filled:
    """Return the voxels of an ROI in one slice.

    A voxel belongs to the ROI if its center is inside an odd number of the polygons, or on the path of one of them. So a contour
    inside another one is a hole, and one contour may surround a hole by a channel of no width (keyhole technique).

    Args:
        polygons: vertices (row, column) of closed contours, float64 of shape (n, 2) each, n at least 3; the last vertex is
            connected to the first.
        shape: rows, columns; parts of the polygons outside of it are cut off.
    Source: DICOM PS3.3, C.8.8.6.3 (points on the path belong to the ROI).
    """
    starts = np.concatenate(polygons)
    ends = np.concatenate([np.roll(polygon, -1, axis=0) for polygon in polygons])
    rows, columns = _window(starts, shape)
    inside = _inside(starts, ends, rows, columns)
    on_rows, on_columns = _centers_on_path(starts, ends)
    in_window = (
        (on_rows >= rows.start) & (on_rows < rows.stop) & (on_columns >= columns.start) & (on_columns < columns.stop)
    )
    inside[on_rows[in_window] - rows.start, on_columns[in_window] - columns.start] = True
    return Filled(rows=rows, columns=columns, inside=inside)


def count_crossed(polygons: Sequence[Polygon], shape: tuple[int, int]) -> int:
    """Return the number of voxels in the common part of polygons that cross, or that enclose the same voxels."""
    crossed = 0
    for first, second in combinations(polygons, 2):
        if (first.max(axis=0) < second.min(axis=0)).any() or (second.max(axis=0) < first.min(axis=0)).any():
            continue
        window = _window(np.concatenate((first, second)), shape)
        one, other = (_inside(polygon, np.roll(polygon, -1, axis=0), *window) for polygon in (first, second))
        common, sizes = int((one & other).sum()), (int(one.sum()), int(other.sum()))
        if common < min(sizes) or common == max(sizes):  # otherwise one contains the other: a hole
            crossed += common
    return crossed


def _window(points: Polygon, shape: tuple[int, int]) -> tuple[slice, slice]:
    """Return the rows and columns of the grid around points."""
    low = np.clip(np.floor(points.min(axis=0)), 0, shape).astype(int).tolist()
    high = np.clip(np.ceil(points.max(axis=0)) + 1, low, shape).astype(int).tolist()
    return slice(low[0], high[0]), slice(low[1], high[1])


def _inside(starts: Polygon, ends: Polygon, rows: slice, columns: slice) -> Plane:
    """Return the voxels whose centers have an odd number of edges to their left."""
    # From the lower row to the higher one, so that an edge that two contours share has the same crossings in both.
    is_reversed = starts[:, :1] > ends[:, :1]
    low, high = np.where(is_reversed, ends, starts), np.where(is_reversed, starts, ends)
    edges, at_rows = _integers_between(low[:, 0], high[:, 0], rows)
    low, high = low[edges], high[edges]
    crossings = low[:, 1] + (at_rows - low[:, 0]) * (high[:, 1] - low[:, 1]) / (high[:, 0] - low[:, 0])
    first = np.clip(np.ceil(crossings), columns.start, columns.stop).astype(np.intp)
    flips = np.zeros((rows.stop - rows.start, columns.stop - columns.start + 1), dtype=np.uint8)
    np.bitwise_xor.at(flips, (at_rows - rows.start, first - columns.start), 1)
    inside: Plane = np.bitwise_xor.accumulate(flips, axis=1)[:, :-1].astype(bool)
    return inside


def _integers_between(
    low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], limits: slice
) -> tuple[_Indices, _Indices]:
    """Return the integers n with low <= n < high of each interval, within limits, and the index of their interval."""
    first, stop = (np.clip(np.ceil(ends), limits.start, limits.stop).astype(np.intp) for ends in (low, high))
    lengths = stop - first
    intervals = np.repeat(np.arange(len(low)), lengths)
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return intervals, first[intervals] + offsets


def _centers_on_path(starts: Polygon, ends: Polygon) -> tuple[_Indices, _Indices]:
    """Return rows and columns of the voxel centers within `ON_CONTOUR` of an edge or a vertex."""
    nearest = np.rint(starts)
    centers = [nearest[np.linalg.norm(starts - nearest, axis=1) <= ON_CONTOUR]]
    is_steep = np.abs(ends - starts)[:, 0] >= np.abs(ends - starts)[:, 1]
    for axis, chosen in ((0, is_steep), (1, ~is_steep)):
        # Along the longer axis of an edge, each integer has one nearest center on the other axis.
        start, end = starts[chosen], ends[chosen]
        low, high = np.minimum(start[:, axis], end[:, axis]), np.maximum(start[:, axis], end[:, axis])
        limits = slice(int(np.floor(low.min(initial=0))), int(np.ceil(high.max(initial=0))) + 1)
        edges, along = _integers_between(low, high, limits)
        start, step = start[edges], (end - start)[edges]
        across = start[:, 1 - axis] + (along - start[:, axis]) * step[:, 1 - axis] / step[:, axis]
        distance = np.abs(across - np.rint(across)) * np.abs(step[:, axis]) / np.linalg.norm(step, axis=1)
        near = np.stack((along, np.rint(across)), axis=1)[distance <= ON_CONTOUR]
        centers.append(near[:, ::-1] if axis else near)
    rows, columns = np.concatenate(centers).astype(np.intp).T
    return rows, columns
