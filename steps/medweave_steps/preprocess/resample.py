"""Streaming trilinear resampling: planes are read one by one, and only the resampled volume is in memory.

Trilinear interpolation is separable, so each plane is interpolated in its own two axes as it arrives, and enters the (at
most a few) new planes that it is a neighbor of with its weight along the third axis. The result is full trilinear
interpolation at the exact physical positions of `io.geometry`'s convention; nothing is smoothed before, as in MONAI's `Spacing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid, Triple, Triple_mm
from medweave_steps.io.geometry import (
    FloatArray,
    interpolate_between,
    interpolation,
    ras_axes,
    ras_grid,
    resampled_shape,
)

NEGLIGIBLE = 1e-6  # weight; 0.004 HU at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """The mapping from a source grid to the uncropped grid with axes I, J, K and new spacing.

    Attributes:
        source: grid of the source array.
        ras: the same voxels in the order I, J, K.
        axis, flipped: as `io.geometry.ras_axes` gives them.
        spacing_mm: new voxel size along I, J, K.
        shape: of the uncropped resampled volume.
    """

    source: Grid
    ras: Grid
    axis: Triple
    flipped: tuple[bool, bool, bool]
    spacing_mm: Triple_mm
    shape: Triple

    def ras_positions(self, target_axis: int) -> npt.NDArray[np.float64]:
        """Return the fractional index on the RAS-ordered source of every new voxel along I, J or K."""
        step = self.spacing_mm[target_axis] / self.ras.spacing_mm[target_axis]
        positions: npt.NDArray[np.float64] = np.arange(self.shape[target_axis], dtype=np.float64) * step
        return positions

    def source_positions(self, source_axis: int) -> npt.NDArray[np.float64]:
        """Return the fractional index on a source axis of every new voxel along the matching one of I, J, K, in their order."""
        target_axis = self.axis.index(source_axis)
        positions = self.ras_positions(target_axis)
        if self.flipped[target_axis]:
            positions = (self.source.shape[source_axis] - 1) - positions
        return positions


def plan_resampling(source: Grid, spacing_mm: Triple_mm) -> Resampling:
    """Compute axes and shape of the resampled grid; the first RAS-ordered voxel center keeps its position."""
    axis, flipped = ras_axes(source)
    ras = ras_grid(source, axis, flipped)
    shape = resampled_shape(ras.shape, ras.spacing_mm, spacing_mm)
    return Resampling(source=source, ras=ras, axis=axis, flipped=flipped, spacing_mm=spacing_mm, shape=shape)


def needed_planes(plan: Resampling, plane_axis: int) -> list[int]:
    """Return indices of the source planes that enter the new volume; with thin slices a good part of them does not."""
    return [index for index, shares in enumerate(_shares(plan, plane_axis)) if shares]


def resample_planes(planes: Iterable[FloatArray], plan: Resampling, *, plane_axis: int) -> FloatArray:
    """Resample a volume that arrives plane by plane.

    Args:
        planes: float32, HU, those of `needed_planes`, in their order; the other two axes in source order. All are consumed.
        plane_axis: source axis along which the planes follow one another.
    Returns:
        float32 [I, J, K] of `plan.shape`; a view whose memory order follows the source's.
    """
    in_plane = [axis for axis in range(3) if axis != plane_axis]
    neighbours = [interpolation(plan.source_positions(axis), plan.source.shape[axis]) for axis in in_plane]
    order = (plane_axis, *in_plane)
    resampled = np.empty([plan.shape[plan.axis.index(axis)] for axis in order], dtype=np.float32)
    entered = [shares for shares in _shares(plan, plane_axis) if shares]
    for plane, shares in zip(planes, entered, strict=True):
        for axis in _by_stride(plane):
            plane = interpolate_between(plane, *neighbours[axis], axis)
        for target, share, is_first in shares:
            if is_first:
                np.multiply(plane, share, out=resampled[target])
            else:
                resampled[target] += plane * share
    return resampled.transpose([order.index(source_axis) for source_axis in plan.axis])


def _shares(plan: Resampling, plane_axis: int) -> list[list[tuple[int, np.float32, bool]]]:
    """Return, for each source plane, the new planes it contributes to, its weight, and whether it is the first to contribute."""
    size = plan.source.shape[plane_axis]
    lower, upper, weight = interpolation(plan.source_positions(plane_axis), size)
    shares: list[list[tuple[int, np.float32, bool]]] = [[] for _ in range(size)]
    for target, (low, high, share) in enumerate(zip(lower, upper, weight, strict=True)):
        # A weight within rounding of 0 or 1 is taken as such: a plane that is not needed need not be decoded.
        if share < 1 - NEGLIGIBLE:
            shares[low].append((target, np.float32(1 - share if share > NEGLIGIBLE else 1), True))
        if share > NEGLIGIBLE:
            is_only = share >= 1 - NEGLIGIBLE
            shares[high].append((target, np.float32(1) if is_only else share, bool(is_only)))
    return shares


def _by_stride(plane: FloatArray) -> tuple[int, int]:
    """Return the two axes of a plane, the one with the longer stride first, because taking whole rows is faster."""
    return (0, 1) if abs(plane.strides[0]) >= abs(plane.strides[1]) else (1, 0)
