"""MR and PET: channels on one grid; each is resampled like a CT. MR has no unit and is standardized; PET keeps its SUV."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple, triple_of
from medweave_steps.io.findings import refuse
from medweave_steps.io.geometry import FloatArray
from medweave_steps.preprocess.lungs import Box
from medweave_steps.preprocess.resample import Resampling, needed_planes, resample_planes

Inside = npt.NDArray[np.bool_] | None
Scalar = TypeVar("Scalar", np.float32, np.bool_)

MULTIPLE = 8
"""Three poolings halve a volume: each side must be a multiple of this."""


def resample_channels(
    planes: Iterator[FloatArray], plan: Resampling, *, plane_axis: int, num_channels: int
) -> list[FloatArray]:
    """Resample channels that arrive one after the other.

    Args:
        planes: those of `needed_planes`, for the first channel, then for the next; all are consumed.
    Returns:
        float32 [I, J, K] of `plan.shape` for each channel.
    """
    number = len(needed_planes(plan, plane_axis))
    channels = [
        resample_planes(itertools.islice(planes, number), plan, plane_axis=plane_axis) for _ in range(num_channels)
    ]
    left = next(planes, None)  # reading past the last plane compares the digest
    assert left is None, "there are as many planes as channels have"
    return channels


def box_of_multiples(shape: Triple, *, case_id: str) -> Box:
    """Return the middle of a volume whose sides are multiples of 8; an odd rest loses one voxel more at the low end.

    155 slices become the 152 from the third to the last but one, as in DistMIS.

    Raises:
        FindingError: a side is shorter than 8 voxels.
    """
    if min(shape) < MULTIPLE:
        raise refuse(
            "too-small",
            f"{case_id}: the volume is too small to be cropped to multiples of 8 voxels.",
            seen=" x ".join(map(str, shape)) + " voxels",
            expected=f"{MULTIPLE} or more on each side",
            do="choose a smaller --spacing-mm, or --crop none",
            case_id=case_id,
        )
    start = [-(-(n % MULTIPLE) // 2) for n in shape]
    stop = [low + n - n % MULTIPLE for low, n in zip(start, shape, strict=True)]
    return (start[0], start[1], start[2]), (stop[0], stop[1], stop[2])


def box_of_shape(shape: Triple, *, double_center: Triple) -> Box:
    """Return a box of a fixed shape; it can reach beyond the volume on both sides.

    Args:
        double_center: twice the middle of the box, in voxel borders: the number of voxels for the middle of a volume.
    """
    start = triple_of(-(-(twice - size) // 2) for twice, size in zip(double_center, shape, strict=True))
    return start, triple_of(low + size for low, size in zip(start, shape, strict=True))


def cut(array_IJK: npt.NDArray[Scalar], box: Box) -> npt.NDArray[Scalar]:
    """Return the part of a volume in a box, with zeros where the box reaches beyond the volume."""
    low = [max(start, 0) for start in box[0]]
    high = [min(stop, size) for stop, size in zip(box[1], array_IJK.shape, strict=True)]
    part = array_IJK[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
    padding = [(a - start, stop - b) for start, stop, a, b in zip(*box, low, high, strict=True)]
    return np.pad(part, padding) if any(map(any, padding)) else part


def joined(
    channels: list[FloatArray], box: Box, names: tuple[str, ...], *, case_id: str, inside: Inside = None
) -> npt.NDArray[np.float32]:
    """Return the channels cut to a box as one array, float32 [channel, I, J, K].

    Args:
        inside: voxels of the box that count, bool [I, J, K]; None for all.
    Raises:
        FindingError: a channel has one value only in the voxels that count.
    """
    result = np.stack([np.asarray(cut(channel, box), dtype=np.float32) for channel in channels])
    for channel, name in zip(result, names, strict=True):
        counted = channel if inside is None else channel[inside]
        if not float(counted.std(dtype=np.float64)) > 0:
            mean = float(counted.mean(dtype=np.float64))
            raise refuse(
                "empty-contrast",
                f"{case_id}: a contrast is empty.",
                seen=f"{name} has the value {mean:g} everywhere",
                expected="a non-constant image in every contrast",
                do="export the case again with all contrasts, or remove it and run check again",
                case_id=case_id,
            )
    return result


def standardize(volume_CIJK: npt.NDArray[np.float32], inside: Inside = None) -> None:
    """Give each channel mean 0 and standard deviation 1 in place; by default over its whole volume, background included.

    Args:
        volume_CIJK: float32 [channel, I, J, K]; no channel has one value only.
        inside: voxels whose mean and deviation count, bool [I, J, K]; None for all.
    Source: DistMIS, section III.
    """
    for channel in volume_CIJK:
        counted = channel if inside is None else channel[inside]
        mean, deviation = float(counted.mean(dtype=np.float64)), float(counted.std(dtype=np.float64))
        channel -= np.float32(mean)
        channel /= np.float32(deviation)
