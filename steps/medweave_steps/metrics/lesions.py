"""Figures per lesion: detected lesions, their sizes, and false positives."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple_mm
from medweave_steps.metrics.components import Components, connected_components
from medweave_steps.metrics.masks import BoolArray, FloatArray, IndexArray, check_pair, ends, foreground


@dataclass(frozen=True, slots=True, kw_only=True)
class LesionMatch:
    """The matched lesions of one scan. A lesion is a connected component (26-connectivity) of the reference mask.

    Attributes:
        reference_diameters_mm: longest in-plane diameter of each lesion, mm.
        reference_volumes_mm3: volume of each lesion, mm³.
        reference_hit: True where at least one voxel of the lesion lies in a predicted component.
        reference_centres: center of mass of each lesion as array indices (fractional), one triple per lesion.
        num_predicted: predicted components.
        num_false_positives: predicted components that share no voxel with any lesion.
    """

    reference_diameters_mm: tuple[float, ...]
    reference_volumes_mm3: tuple[float, ...]
    reference_hit: tuple[bool, ...]
    reference_centres: tuple[tuple[float, float, float], ...]
    num_predicted: int
    num_false_positives: int

    def count(self, *, at_least_mm: float = 0.0, below_mm: float = math.inf) -> tuple[int, int]:
        """Return the numbers of lesions hit and of all lesions with a diameter in [at_least_mm, below_mm)."""
        hits = [
            hit
            for hit, size in zip(self.reference_hit, self.reference_diameters_mm, strict=True)
            if at_least_mm <= size < below_mm
        ]
        return sum(hits), len(hits)


def match_lesions(
    predicted: BoolArray, reference: BoolArray, *, spacing_mm: Triple_mm, plane_axis: int = 2
) -> LesionMatch:
    """Match predicted components with reference lesions.

    A lesion is hit if one predicted component overlaps it, in any number of voxels; a predicted component that overlaps
    no lesion is a false positive. A component that covers several lesions hits them all and is no false positive: such a mask
    shows in its Dice.

    Args:
        predicted, reference: bool arrays of one shape of three dimensions, on the same grid.
        spacing_mm: voxel size along the array's axes, mm, each > 0.
        plane_axis: axis that counts the image planes (0 for DICOM arrays [slice, row, column], 2 for I, J, K).
    Raises:
        UserInputError: shapes differ or a mask is not bool.
    """
    check_pair(predicted, reference)
    found, lesions = connected_components(predicted), connected_components(reference)
    common = foreground(predicted & reference)
    is_hit = np.zeros(lesions.num, np.bool_)
    is_hit[lesions.labels[np.searchsorted(lesions.voxels, common)]] = True
    is_true = np.zeros(found.num, np.bool_)
    is_true[found.labels[np.searchsorted(found.voxels, common)]] = True
    volumes = lesions.num_voxels() * math.prod(spacing_mm)
    return LesionMatch(
        reference_diameters_mm=tuple(longest_diameters_mm(lesions, spacing_mm=spacing_mm, plane_axis=plane_axis)),
        reference_volumes_mm3=tuple(float(volume) for volume in volumes),
        reference_hit=tuple(bool(hit) for hit in is_hit),
        reference_centres=tuple(_centres(lesions)),
        num_predicted=found.num,
        num_false_positives=int(found.num - is_true.sum()),
    )


def longest_diameters_mm(components: Components, *, spacing_mm: Triple_mm, plane_axis: int) -> list[float]:
    """Return the longest in-plane diameter of each component, mm.

    In each image plane: the distance between the centers of the two voxels that lie farthest apart, plus one voxel (the mean
    of both in-plane spacings), because a voxel is as wide as its spacing: a lesion of one voxel is one voxel long, not 0 mm.
    The largest of all planes counts, as in RECIST's longest diameter.

    Source: Eisenhauer et al. 2009, Eur J Cancer 45(2):228-247 (RECIST 1.1, longest diameter in the plane of measurement).
    """
    if not components.num:
        return []
    row_axis, column_axis = (axis for axis in range(3) if axis != plane_axis)
    row_mm, column_mm = spacing_mm[row_axis], spacing_mm[column_axis]
    # The two farthest voxels of a plane are each the first or the last of their row: only these are compared.
    candidates = ends(components.mask, components.voxels, axis=column_axis)
    index = np.unravel_index(components.voxels[candidates], components.mask.shape)
    keys = (components.labels[candidates], index[plane_axis], index[row_axis], index[column_axis])
    order = np.lexsort(keys[::-1])
    label, plane, row, column = (key[order] for key in keys)
    new_row = _changes(label, plane, row)
    outermost = np.unique(np.concatenate([new_row, np.append(new_row[1:], len(label)) - 1]))
    label, plane, row, column = label[outermost], plane[outermost], row[outermost], column[outermost]
    points = np.stack([row * row_mm, column * column_mm], axis=1)
    longest = np.zeros(components.num)
    bounds = np.append(_changes(label, plane), len(label))
    for begin, end in itertools.pairwise(bounds):
        longest[label[begin]] = max(longest[label[begin]], _farthest(points[begin:end]))
    return [float(value) + (row_mm + column_mm) / 2 for value in longest]


def _changes(*keys: npt.NDArray[Any]) -> IndexArray:
    changed = np.ones(len(keys[0]), np.bool_)
    changed[1:] = np.any([np.diff(key) != 0 for key in keys], axis=0)
    return np.flatnonzero(changed)


def _farthest(points: FloatArray) -> float:
    between = points[:, None, :] - points[None, :, :]
    return float(np.sqrt((between**2).sum(axis=-1).max()))


def _centres(components: Components) -> list[tuple[float, float, float]]:
    size = np.maximum(components.num_voxels(), 1)
    index = np.unravel_index(components.voxels, components.mask.shape)
    i, j, k = (np.bincount(components.labels, weights=axis, minlength=components.num) / size for axis in index)
    return [(float(a), float(b), float(c)) for a, b, c in zip(i, j, k, strict=True)]
