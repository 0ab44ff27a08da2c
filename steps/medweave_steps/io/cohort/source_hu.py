"""`source_hu.npy`: the source HU of a prepared CT case, on which `segment` measures lesions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple, VolumeInfo
from medweave_core.errors import UserInputError
from medweave_steps.io.geometry import FloatArray, source_positions

SOURCE_HU_FILE = "source_hu.npy"

_PADDING = np.int16(-32768)  # marks "no measurement" in int16 values
_ROUNDING = 1e-6  # voxels of the prepared grid

Box = tuple[slice, slice, slice]


def source_box(info: VolumeInfo) -> Box:
    """Return the part of the source array that a mask on the prepared grid can reach, one slice for each source axis.

    A source voxel gets its probability from its neighbors on the prepared grid, so it lies less than one prepared voxel
    outside of that grid.
    """
    box = [slice(0, 0)] * 3
    for axis, (source, is_flipped) in enumerate(zip(info.source_axis, info.source_flipped, strict=True)):
        positions = source_positions(info, axis)
        inside = (positions >= -1 - _ROUNDING) & (positions <= info.grid.shape[axis] + _ROUNDING)
        indices = np.flatnonzero(inside[::-1] if is_flipped else inside)
        box[source] = slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)
    return (box[0], box[1], box[2])


class SourceHuCollector:
    """A lossless store for the HU planes of one series: int16 while all values are whole numbers, else float32."""

    def __init__(self, shape: Triple, *, plane_axis: int) -> None:
        self._plane_axis = plane_axis
        # NIfTI planes [i, j] follow one another along the last axis: in Fortran order each is one block of memory.
        self._values: npt.NDArray[Any] = np.empty(shape, np.int16, order="C" if plane_axis == 0 else "F")

    def collect(self, planes: Iterator[FloatArray]) -> Iterator[FloatArray]:
        """Store every plane and yield it unchanged.

        Args:
            planes: all planes of the source in order, float32, HU, NaN for padding.
        """
        for number, plane in enumerate(planes):
            self._store(number, plane)
            yield plane

    def part(self, box: Box) -> npt.NDArray[Any]:
        """Return the collected values in a box of the source array: int16, or float32 with NaN for padding."""
        return self._values[box]

    def _store(self, number: int, plane: FloatArray) -> None:
        place = (slice(None),) * self._plane_axis + (number,)
        if self._values.dtype == np.int16:
            whole = _as_int16(plane)
            if whole is not None:
                self._values[place] = whole
                return
            self._values = _as_float32(self._values)
        self._values[place] = plane


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHu:
    """Source HU of one case, memory-mapped.

    Attributes:
        values: int16 or float32, in the axis order of the source.
        start: first voxel of `values` in the source array.
    """

    values: npt.NDArray[Any]
    start: Triple

    def mean(self, index: npt.NDArray[np.intp]) -> float | None:
        """Return the mean HU at voxels of the source array, None where all of them are padding.

        Args:
            index: array indices of shape (n, 3).
        """
        place = index - self.start
        assert (place >= 0).all(), "a mask stays inside the box that its prepared grid reaches"
        values = _as_float32(self.values[tuple(place.T)])
        measured = values[~np.isnan(values)]
        return float(measured.mean(dtype=np.float64)) if len(measured) else None


def open_source_hu(folder: Path, info: VolumeInfo) -> SourceHu | None:
    """Open the source HU of a prepared case.

    Returns:
        None where the case has none: MR, or a batch that was prepared without it.
    Raises:
        UserInputError: the file is missing or damaged, or does not belong to the case.
    """
    if info.source_hu_start is None:
        return None
    expected = tuple(part.stop - part.start for part in source_box(info))
    try:
        values = np.load(folder / SOURCE_HU_FILE, mmap_mode="r", allow_pickle=False)
        seen = f"{values.dtype} of shape {values.shape}"
        is_right = values.shape == expected and values.dtype in (np.int16, np.float32)
    except (OSError, ValueError, EOFError) as error:
        seen, is_right = type(error).__name__, False
    if not is_right:
        raise UserInputError(
            f"{SOURCE_HU_FILE} of {info.case_id} is invalid.",
            seen=seen,
            expected=f"int16 or float32 of shape {expected}, written by preprocess",
            do="run preprocess again",
        )
    return SourceHu(values=values, start=info.source_hu_start)


def _as_int16(plane: FloatArray) -> npt.NDArray[np.int16] | None:
    """Return the plane as int16 with a mark for padding, None where that would change a value."""
    is_padding = np.isnan(plane)
    values = np.where(is_padding, np.float32(0), plane) if is_padding.any() else plane
    if values.min() <= _PADDING or values.max() > np.iinfo(np.int16).max:
        return None
    whole = values.astype(np.int16)
    if not np.array_equal(whole, values):
        return None
    whole[is_padding] = _PADDING
    return whole


def _as_float32(values: npt.NDArray[Any]) -> FloatArray:
    """Return values as float32 with NaN for padding."""
    if values.dtype != np.int16:
        return values
    result = values.astype(np.float32)
    result[values == _PADDING] = np.nan
    return result
