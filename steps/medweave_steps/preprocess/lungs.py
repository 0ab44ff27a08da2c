"""Lung segmentation: a mask with vessels and nodules filled in, and the box that the volume is cropped to.

Threshold, connected components and closing, the classical recipe (Hu et al. 2001, IEEE TMI 20(6):490, and Armato and Sensakovic
2004, Acad Radiol 11(9):1011), with a fall-back that widens the field of view wherever the result may be wrong: a crop that is
too large costs seconds, one that is too small costs a nodule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple, Triple_mm, triple_of
from medweave_steps.io.geometry import interpolate_axis

BoolArray = npt.NDArray[np.bool_]
Box = tuple[Triple, Triple]

AIR_BELOW_HU = -500.0  # between lung (about -850) and soft tissue (about 40)
ANALYSIS_MM = 2.0  # finer grids are thinned out to about this spacing; thoracic walls are thicker
SHELL_MM = 6.0  # tissue thinner than this within an axial slice is no body; the walls of a chest are thicker
CLOSING_MM = 20.0  # radius; closes vessels, hila and 30 mm nodules on the pleura, and adds 5 % of mediastinum
LARGEST_HOLE_MM2 = (
    1500.0  # holes of an axial slice up to this area are filled: more than a 30 mm nodule (707 mm²), less than a heart
)
LEAST_LUNG_ML = 150.0  # smaller air is bowel gas or noise
LEAST_SHARE = 0.1  # of the larger lung, for air to count as the other lung
PURE_AIR_HU = -960.0  # mean below which enclosed air is not lung: a hollow table top, a gas-filled stomach
APEX_MM2 = 500.0  # top slices with less air than this show the trachea only
ONE_SIDED = 0.1  # share of the lung volume on the other side of the body below which one lung is taken as missing
LEAK_SHARE = (
    0.02  # share of lung voxels that touch outside air across slices, from which the field of view cuts through lung
)

_IN_PLANE = np.zeros((3, 3, 3), dtype=bool)
_IN_PLANE[:, 1, 1] = _IN_PLANE[1, :, 1] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LungField:
    """The lungs of one volume.

    Attributes:
        mask_IJK: bool; lungs with vessels and nodules filled in, or, where no lungs were found, the body.
        box: first and one-past-last voxel along I, J, K of the field of view, without margin.
        kind: `lungs`; `one-lung` (box as wide as the body); `body`; `everything` (not even a body).
        lung_volume_ml: of the mask where it shows lungs, else None.
    """

    mask_IJK: BoolArray
    box: Box
    kind: Literal["lungs", "one-lung", "body", "everything"]
    lung_volume_ml: float | None

    @property
    def has_lungs(self) -> bool:
        """True if at least one lung was found."""
        return self.kind in ("lungs", "one-lung")


def find_lungs(volume_IJK: npt.NDArray[np.float32], spacing_mm: Triple_mm) -> LungField:
    """Find the lungs in a chest CT; never fails.

    Args:
        volume_IJK: float32 [I, J, K], HU, not clipped.
        spacing_mm: voxel size along I, J, K.
    """
    stride = _stride(spacing_mm, ANALYSIS_MM)
    thin_mm = _times(spacing_mm, stride)
    thin = np.ascontiguousarray(volume_IJK[tuple(slice(None, None, s) for s in stride)])
    air = thin < AIR_BELOW_HU
    enclosed = _enclosed_by_body(air, thin_mm)
    body_box = _box_of(enclosed)
    if body_box is None:
        everything = np.ones(volume_IJK.shape, dtype=bool)
        return LungField(mask_IJK=everything, box=((0, 0, 0), volume_IJK.shape), kind="everything", lung_volume_ml=None)
    inner = _slices(body_box)
    lungs = _lung_air(thin[inner], air[inner], enclosed[inner], thin_mm)
    if lungs is None:
        mask, box = _enlarged(enclosed, volume_IJK.shape, stride), _scaled(body_box, stride, volume_IJK.shape)
        return LungField(mask_IJK=mask, box=box, kind="body", lung_volume_ml=None)
    filled, box = np.zeros(thin.shape, dtype=bool), _field_of_view(lungs, thin_mm)
    filled[inner] = _filled(lungs, thin_mm)
    one_sided = _is_one_sided(lungs, enclosed[inner])
    box = _shifted(box, body_box[0])
    if one_sided:
        (_, _, low), (_, _, high) = box
        box = ((*body_box[0][:2], low), (*body_box[1][:2], high))
    mask = _enlarged(filled, volume_IJK.shape, stride)
    millilitres = float(np.count_nonzero(mask)) * float(np.prod(spacing_mm)) / 1000
    return LungField(
        mask_IJK=mask,
        box=_scaled(box, stride, volume_IJK.shape),
        kind="one-lung" if one_sided else "lungs",
        lung_volume_ml=round(millilitres, 1),
    )


def crop_box(box: Box, shape: Triple, spacing_mm: Triple_mm, margin_mm: float) -> Box:
    """Return a box with a margin on every side, within the volume."""
    pads = [int(np.ceil(margin_mm / size - 1e-6)) for size in spacing_mm]
    start = [max(0, low - pad) for low, pad in zip(box[0], pads, strict=True)]
    stop = [min(n, high + pad) for high, pad, n in zip(box[1], pads, shape, strict=True)]
    return triple_of(start), triple_of(stop)


def _enclosed_by_body(air: BoolArray, spacing_mm: Triple_mm) -> BoolArray:
    """Return the largest piece of tissue with everything that it encloses within an axial slice.

    Thin shells (table top, clothing) are opened away first, so that neither they nor what they hold belongs to the body. What is
    left is at least a square of three voxels wide everywhere, so every second or third voxel still shows closed walls.
    """
    tissue = ~air
    if max(spacing_mm[:2]) <= SHELL_MM / 2:
        tissue = _spread(_spread(air, 0), 1)
        tissue = _spread(_spread(~tissue, 0), 1)
    stride = _stride(spacing_mm, 2 * ANALYSIS_MM)
    body = _largest(tissue[tuple(slice(None, None, s) for s in stride)])
    if body is None:
        return np.zeros_like(air)
    return _enlarged(~_touching_sides(~body), air.shape, stride)


def _spread(mask: BoolArray, axis: int) -> BoolArray:
    """Dilate a mask by one voxel along an axis."""
    result = mask.copy()
    target, source = np.moveaxis(result, axis, 0), np.moveaxis(mask, axis, 0)
    target[1:] |= source[:-1]
    target[:-1] |= source[1:]
    return result


def _largest(mask: BoolArray) -> BoolArray | None:
    from scipy import ndimage

    labels, number = ndimage.label(mask)
    if number == 0:
        return None
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    largest: BoolArray = labels == int(np.argmax(sizes))
    return largest


def _touching_sides(mask: BoolArray) -> BoolArray:
    """Return voxels connected, within their axial slice, to the left, right, front or back side of the volume."""
    from scipy import ndimage

    labels, number = ndimage.label(mask, structure=_IN_PLANE)
    outside = np.zeros(number + 1, dtype=bool)
    for side in (labels[0], labels[-1], labels[:, 0], labels[:, -1]):
        outside[side.ravel()] = True
    outside[0] = False
    touching: BoolArray = outside[labels]
    return touching


def _lung_air(
    volume: npt.NDArray[np.float32], air: BoolArray, enclosed: BoolArray, spacing_mm: Triple_mm
) -> BoolArray | None:
    """Return the air of the lungs and airways, or None where no plausible component exists."""
    from scipy import ndimage

    inside = air & enclosed
    labels, number = ndimage.label(inside)
    sizes = np.bincount(labels.ravel(), minlength=number + 1)
    sizes[0] = 0
    voxel_ml = float(np.prod(spacing_mm)) / 1000
    places = ndimage.find_objects(labels)
    chosen: list[int] = []
    for candidate in np.argsort(sizes)[::-1][:6]:
        size = int(sizes[candidate])
        if size * voxel_ml < LEAST_LUNG_ML or len(chosen) == 2 or (chosen and size < LEAST_SHARE * sizes[chosen[0]]):
            break
        place = places[candidate - 1]
        if float(volume[place][labels[place] == candidate].mean()) >= PURE_AIR_HU:
            chosen.append(int(candidate))
    if not chosen:
        return None
    is_lung = np.zeros(number + 1, dtype=bool)
    is_lung[chosen] = True
    lungs: BoolArray = is_lung[labels]
    outside = air & ~enclosed
    leaks = np.count_nonzero(lungs[:, :, 1:] & outside[:, :, :-1])
    leaks += np.count_nonzero(lungs[:, :, :-1] & outside[:, :, 1:])
    return None if leaks > LEAK_SHARE * np.count_nonzero(lungs) else lungs


def _filled(lungs: BoolArray, spacing_mm: Triple_mm) -> BoolArray:
    """Close the lungs by a ball of `CLOSING_MM`, then fill small holes of axial slices, on a grid of about twice `ANALYSIS_MM`."""
    from scipy import ndimage

    stride = _stride(spacing_mm, 2 * ANALYSIS_MM)
    coarse_mm = _times(spacing_mm, stride)
    pads = [int(np.ceil(CLOSING_MM / size)) + 2 for size in coarse_mm]
    box = _box_of(lungs)
    assert box is not None
    inner = _slices(box)
    coarse = np.pad(lungs[inner][tuple(slice(None, None, s) for s in stride)], [(p, p) for p in pads])
    near = ndimage.distance_transform_edt(~coarse, sampling=coarse_mm) <= CLOSING_MM
    closed = ndimage.distance_transform_edt(near, sampling=coarse_mm) > CLOSING_MM
    closed = _small_holes_filled(closed, coarse_mm[0] * coarse_mm[1])
    smooth = closed.astype(np.float32)
    for axis in range(3):
        size = box[1][axis] - box[0][axis]
        smooth = interpolate_axis(smooth, np.arange(size) / stride[axis] + pads[axis], axis)
    result = lungs.copy()
    result[inner] |= smooth >= 0.5
    return result


def _small_holes_filled(mask: BoolArray, pixel_mm2: float) -> BoolArray:
    from scipy import ndimage

    labels, number = ndimage.label(~mask, structure=_IN_PLANE)
    areas = np.bincount(labels.ravel(), minlength=number + 1) * pixel_mm2
    small = areas <= LARGEST_HOLE_MM2
    for side in (labels[0], labels[-1], labels[:, 0], labels[:, -1]):
        small[side.ravel()] = False
    small[0] = False
    filled: BoolArray = mask | small[labels]
    return filled


def _field_of_view(lungs: BoolArray, spacing_mm: Triple_mm) -> Box:
    """Return the lungs' box without the slices above the apices that show only the trachea."""
    areas = np.count_nonzero(lungs, axis=(0, 1)) * spacing_mm[0] * spacing_mm[1]
    large = np.flatnonzero(areas >= APEX_MM2)
    top = int(large[-1]) + 1 if len(large) else lungs.shape[2]
    box = _box_of(lungs[:, :, :top])
    assert box is not None
    return box


def _is_one_sided(lungs: BoolArray, body: BoolArray) -> bool:
    """Return True if nearly all lung lies on one side of the body; the other may be collapsed or outside the field of view."""
    per_sagittal = np.count_nonzero(body, axis=(1, 2)).astype(np.float64)
    middle = float(per_sagittal @ np.arange(len(per_sagittal)) / per_sagittal.sum())
    lung = np.count_nonzero(lungs, axis=(1, 2)).astype(np.float64)
    left = float(lung[: round(middle)].sum())
    return bool(min(left, lung.sum() - left) < ONE_SIDED * lung.sum())


def _box_of(mask: BoolArray) -> Box | None:
    start, stop = [], []
    for axis in range(3):
        used = np.flatnonzero(mask.any(axis=tuple(other for other in range(3) if other != axis)))
        if len(used) == 0:
            return None
        start.append(int(used[0]))
        stop.append(int(used[-1]) + 1)
    return triple_of(start), triple_of(stop)


def _enlarged(mask: BoolArray, shape: Sequence[int], stride: Triple) -> BoolArray:
    """Return a thinned-out mask on the full grid; each voxel takes its nearest one."""
    if stride == (1, 1, 1):
        return mask
    nearest = [
        np.minimum((np.arange(n) + s // 2) // s, m - 1) for n, s, m in zip(shape, stride, mask.shape, strict=True)
    ]
    full: BoolArray = mask[np.ix_(*nearest)]
    return full


def _scaled(box: Box, stride: Triple, shape: Sequence[int]) -> Box:
    """Return a box of the thinned-out grid on the full one, never smaller."""
    start = [max(0, (low - 1) * s + 1) for low, s in zip(box[0], stride, strict=True)]
    stop = [min(n, high * s) for high, s, n in zip(box[1], stride, shape, strict=True)]
    return triple_of(start), triple_of(stop)


def _shifted(box: Box, by: Triple) -> Box:
    start, stop = ([place + shift for place, shift in zip(corner, by, strict=True)] for corner in box)
    return triple_of(start), triple_of(stop)


def _stride(spacing_mm: Triple_mm, wanted_mm: float) -> Triple:
    return triple_of([max(1, int(wanted_mm / size + 1e-6)) for size in spacing_mm])


def _times(spacing_mm: Triple_mm, stride: Triple) -> Triple_mm:
    a, b, c = (size * s for size, s in zip(spacing_mm, stride, strict=True))
    return (a, b, c)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in zip(*box, strict=True))
