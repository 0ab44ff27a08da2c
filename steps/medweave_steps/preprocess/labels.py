"""Ground truth on the prepared grid: each lesion interpolated alone, and none lost however small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple
from medweave_steps.io.geometry import interpolate_axis, to_ras_order
from medweave_steps.preprocess.resample import Resampling

LabelArray = npt.NDArray[np.uint8]
HALF_TOLERANCE = 1e-6
HALF = 0.5 - HALF_TOLERANCE  # float32 rounding must not decide about a voxel that lies exactly on a lesion's border

Box = tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampledLesion:
    """One lesion on the uncropped resampled grid.

    Attributes:
        value: its label.
        start: first voxel of its box along I, J, K.
        weight_IJK: float32 in [0, 1], the interpolated mask within its box; at least one voxel reaches one half.
    """

    value: int
    start: Triple
    weight_IJK: npt.NDArray[np.float32]

    @property
    def mask_IJK(self) -> npt.NDArray[np.bool_]:
        """The lesion within its box, bool; at least one voxel is set."""
        mask: npt.NDArray[np.bool_] = self.weight_IJK >= HALF
        return mask

    @property
    def stop(self) -> Triple:
        """One past the last voxel of its box along I, J, K."""
        a, b, c = (low + n for low, n in zip(self.start, self.weight_IJK.shape, strict=True))
        return (a, b, c)


def resample_lesions(truth: LabelArray, plan: Resampling) -> list[ResampledLesion]:
    """Return every lesion of a reference mask, on the resampled grid.

    A lesion is a connected component (26 neighbors) of one label value. Its binary mask is interpolated linearly and cut at
    one half; a lesion that falls between the new voxel centers keeps the voxel it is nearest to.

    Args:
        truth: uint8 label values in source order, on `plan.source`.
        plan: as for the volume.
    """
    positions = [plan.ras_positions(axis) for axis in range(3)]
    truth_IJK = to_ras_order(truth, plan.axis, plan.flipped)
    return [_resampled(value, start, mask, positions) for value, start, mask in _components(truth_IJK)]


def paint(
    lesions: Sequence[ResampledLesion], start: Triple, shape: Triple, *, ignore_value: int | None = None
) -> tuple[LabelArray, int]:
    """Return the label volume of a crop.

    With one label, a voxel belongs to it where the interpolated mask reaches one half. With several, it gets the label with the
    largest interpolated value, or the background if that is larger.

    Args:
        start, shape: of the crop on the uncropped grid.
        ignore_value: value of voxels without annotation, which are painted, but are no lesions.
    Returns:
        uint8 [I, J, K], and how many of the lesions have no voxel in the crop.
    """
    label = np.zeros(shape, dtype=np.uint8)
    weights = _Weights(shape) if len({lesion.value for lesion in lesions}) > 1 else None
    outside = 0
    for lesion in lesions:
        places = _places(lesion, start, shape)
        if places is None:
            outside += lesion.value != ignore_value
            continue
        inside, target = places
        part = lesion.mask_IJK[inside]
        outside += not part.any() and lesion.value != ignore_value
        if weights is None:
            label[target][part] = lesion.value
        else:
            weights.add(lesion.weight_IJK[inside], target, lesion.value)
    if weights is not None:
        label = weights.labels()
        for lesion in lesions:  # none is lost, however small
            places = _places(lesion, start, shape)
            if places is not None and not (label[places[1]] == lesion.value).any():
                label[places[1]][lesion.mask_IJK[places[0]]] = lesion.value
    return label, outside


def _places(lesion: ResampledLesion, start: Triple, shape: Triple) -> tuple[Box, Box] | None:
    """Return the part of a lesion's box that lies in a crop, as slices of the box and of the crop; None if there is none."""
    low = [max(a, b) for a, b in zip(lesion.start, start, strict=True)]
    high = [min(a, b + n) for a, b, n in zip(lesion.stop, start, shape, strict=True)]
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return None
    inside = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, lesion.start, strict=True))
    target = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))
    return inside, target


class _Weights:
    """The interpolated masks of several labels in one volume."""

    def __init__(self, shape: Triple) -> None:
        self._best, self._sum = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._value = np.zeros(shape, np.uint8)

    def add(self, weight: npt.NDArray[np.float32], target: Box, value: int) -> None:
        """Add one lesion."""
        self._sum[target] += weight
        is_larger = weight > self._best[target]
        self._best[target][is_larger] = weight[is_larger]
        self._value[target][is_larger] = value

    def labels(self) -> LabelArray:
        """Return the label with the largest value in each voxel; 0 where the rest of the sum is larger."""
        background = 1 - self._sum
        self._value[self._best < background - (HALF_TOLERANCE * 2)] = 0
        return self._value


def _components(truth_IJK: LabelArray) -> Iterator[tuple[int, Triple, npt.NDArray[np.bool_]]]:
    from scipy import ndimage

    used = _used_box(truth_IJK)
    if used is None:
        return
    boxed = truth_IJK[used]
    for value in np.flatnonzero(np.bincount(boxed.ravel())):
        if value == 0:
            continue
        labels, _ = ndimage.label(boxed == value, structure=np.ones((3, 3, 3), dtype=bool))
        for number, place in enumerate(ndimage.find_objects(labels), start=1):
            i, j, k = (outer.start + inner.start for outer, inner in zip(used, place, strict=True))
            yield int(value), (i, j, k), labels[place] == number


def _used_box(array: npt.NDArray[Any]) -> tuple[slice, ...] | None:
    """Return the box of all voxels above 0, axis by axis; each axis is searched in the box of the axes before it."""
    box = [slice(0, n) for n in array.shape]
    # The axis of the longest stride first: it is read as the memory lies.
    for axis in np.argsort([-abs(stride) for stride in array.strides]):
        rest = array[tuple(box)]
        used = np.flatnonzero(rest.max(axis=tuple(other for other in range(3) if other != axis)))
        if len(used) == 0:
            return None
        box[axis] = slice(int(used[0]), int(used[-1]) + 1)
    return tuple(box)


def _resampled(
    value: int, start: Triple, mask: npt.NDArray[np.bool_], positions: Sequence[npt.NDArray[np.float64]]
) -> ResampledLesion:
    """Interpolate one lesion; only new voxels within one source voxel of it can reach one half."""
    around = np.pad(mask, 1).astype(np.float32)
    low, places = [], []
    for axis in range(3):
        first, last = start[axis] - 1, start[axis] + mask.shape[axis]
        inside = np.flatnonzero((positions[axis] > first) & (positions[axis] < last))
        low.append(int(inside[0]) if len(inside) else 0)
        places.append(positions[axis][inside] - first)
    for axis in range(3):
        around = interpolate_axis(around, places[axis], axis)
    if not (around >= HALF).any():
        return _nearest(value, start, mask, positions)
    return ResampledLesion(value=value, start=(low[0], low[1], low[2]), weight_IJK=around)


def _nearest(
    value: int, start: Triple, mask: npt.NDArray[np.bool_], positions: Sequence[npt.NDArray[np.float64]]
) -> ResampledLesion:
    """Return a lesion of one new voxel: the one nearest to its center of mass."""
    centre = np.argwhere(mask).mean(axis=0) + np.asarray(start)
    i, j, k = (int(np.argmin(np.abs(place - c))) for place, c in zip(positions, centre, strict=True))
    return ResampledLesion(value=value, start=(i, j, k), weight_IJK=np.ones((1, 1, 1), dtype=np.float32))
