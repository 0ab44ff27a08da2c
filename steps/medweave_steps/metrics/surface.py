"""Distances between the surfaces of two masks, in mm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from medweave_core.contracts.volume import Triple_mm
from medweave_steps.metrics.masks import BoolArray, FloatArray, IndexArray, check_pair, ends, foreground, positions_mm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SurfaceDistances:
    """The distance of each surface voxel of one mask to the nearest surface voxel of the other, mm.

    Attributes:
        to_reference_mm: one per surface voxel of the predicted mask; empty if that mask is empty, infinite if the other is.
        to_predicted_mm: one per surface voxel of the reference mask, likewise.
    """

    to_reference_mm: FloatArray
    to_predicted_mm: FloatArray

    def hd95_mm(self) -> float:
        """Return HD95 in mm; see the function `hd95_mm`."""
        if not len(self.to_reference_mm) and not len(self.to_predicted_mm):
            return math.nan
        if not len(self.to_reference_mm) or not len(self.to_predicted_mm):
            return math.inf
        return max(
            float(np.percentile(self.to_reference_mm, 95)),
            float(np.percentile(self.to_predicted_mm, 95)),
        )

    def nsd(self, *, tolerance_mm: float) -> float:
        """Return NSD; see the function `nsd`."""
        total = len(self.to_reference_mm) + len(self.to_predicted_mm)
        within = sum(int((d <= tolerance_mm).sum()) for d in (self.to_reference_mm, self.to_predicted_mm))
        return within / total if total else math.nan


def surface_distances(predicted: BoolArray, reference: BoolArray, *, spacing_mm: Triple_mm) -> SurfaceDistances:
    """Return the distances between the surfaces of two masks, in both directions.

    A surface voxel is a foreground voxel with a face neighbor that is background or outside the array.

    Args:
        predicted, reference: bool arrays of one shape of three dimensions, on the same grid.
        spacing_mm: voxel size along the array's axes, mm, each > 0.
    Raises:
        UserInputError: shapes differ or a mask is not bool.
    """
    from scipy.spatial import cKDTree

    check_pair(predicted, reference)
    points = [positions_mm(_surface(mask), mask.shape, spacing_mm) for mask in (predicted, reference)]
    if not all(len(p) for p in points):
        one_way, other_way = (np.full(len(p), math.inf) for p in points)
    else:
        one_way, _ = cKDTree(points[1]).query(points[0])
        other_way, _ = cKDTree(points[0]).query(points[1])
    return SurfaceDistances(to_reference_mm=one_way, to_predicted_mm=other_way)


def hd95_mm(predicted: BoolArray, reference: BoolArray, *, spacing_mm: Triple_mm) -> float:
    """Return the 95th percentile of the Hausdorff distance, mm: the larger of both directions' percentiles (linear interpolation).

    Returns:
        HD95 in mm, >= 0; infinite if exactly one mask is empty (the worst case of a median),
        NaN if both are.
    Source: Huttenlocher et al. 1993, IEEE Trans Pattern Anal Mach Intell 15(9):850-863; equal to MONAI's
        `compute_hausdorff_distance(percentile=95)` where both masks hold something.
    """
    return surface_distances(predicted, reference, spacing_mm=spacing_mm).hd95_mm()


def nsd(predicted: BoolArray, reference: BoolArray, *, spacing_mm: Triple_mm, tolerance_mm: float) -> float:
    """Return the share of both mask surfaces lying within a tolerance of each other (NSD), counted in surface voxels.

    Args:
        predicted, reference: bool arrays of one shape of three dimensions, on the same grid.
        spacing_mm: voxel size along the array's axes, mm, each > 0.
        tolerance_mm: largest distance in mm still counted as agreement; quoted with every NSD.
    Returns:
        NSD in [0, 1]; 0.0 if exactly one mask is empty, NaN if both are.
    Source: Nikolov et al. 2021, J Med Internet Res 23(7):e26151, "surface DSC"; voxels are counted, not triangles weighed,
        as MONAI's `compute_surface_dice` does by default.
    """
    return surface_distances(predicted, reference, spacing_mm=spacing_mm).nsd(tolerance_mm=tolerance_mm)


def _surface(mask: BoolArray) -> IndexArray:
    """Return the flattened indices of the mask's surface voxels."""
    voxels = foreground(mask)
    return voxels[ends(mask, voxels, axis=0) | ends(mask, voxels, axis=1) | ends(mask, voxels, axis=2)]
