"""Reference masks (and delivered ones) on the grid of their volume: DICOM SEG of every kind, RTSTRUCT, and NIfTI label maps."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import LabelMerge
from medweave_core.contracts.volume import Grid
from medweave_steps.io.channel_grid import SAME_PLACE_VOXELS
from medweave_steps.io.cohort.label_map import LabelMap
from medweave_steps.io.cohort.labels import LabelArray, merge_values
from medweave_steps.io.cohort.structure_set import read_rtstruct
from medweave_steps.io.dicom.header import NATIVE, Plane, background_of, described_segments, load_pydicom
from medweave_steps.io.dicom.rtstruct_header import STRUCTURE_SET
from medweave_steps.io.dicom.series import SIDEWAYS_TOLERANCE
from medweave_steps.io.dicom.slice_index import SlicesByImage, image_key, slices_by_image
from medweave_steps.io.dicom.values import has_other_cause
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.geometry import corners_apart_mm, lps_to_ras
from medweave_steps.io.nifti.volume import open_nifti

COSINE_TOLERANCE = 1e-3
FRACTION = 0.5  # of MaximumFractionalValue: a voxel of a FRACTIONAL segment belongs to it from this probability or occupancy on

_P = ParamSpec("_P")


def read_nifti_mask(path: Path, grid: Grid, name: SeriesName, merges: Sequence[LabelMerge] = ()) -> LabelArray:
    """Return a NIfTI label map on the grid of its volume.

    Args:
        grid: of the volume, [i, j, k].
        merges: values that count as one label.
    Returns:
        uint8 [i, j, k], label values after merging.
    Raises:
        FindingError: another shape or affine, values that are not whole numbers from 0 to 255, or a damaged file.
    """
    mask = open_nifti(path, name, role="mask")
    check_same_grid(mask.grid, grid, name)
    labels = np.empty(grid.shape, dtype=np.uint8, order="F")
    for index, stored in enumerate(mask.planes()):
        values = stored if (mask.slope, mask.intercept) == (1, 0) else stored * mask.slope + mask.intercept
        with np.errstate(invalid="ignore"):  # what does not fit is found by the comparison
            whole = values.astype(np.uint8)
        if (whole != values).any():
            worst = float(values[whole != values].flat[0])
            raise name.refuse(
                "labels-outside-declared-set",
                "the mask contains values that are not labels.",
                seen=f"value {worst:g}",
                expected="integers from 0 to 255",
                do="write the mask as integer labels (0 is background)",
            )
        labels[:, :, index] = merge_values(whole, merges)
    return labels


def check_same_grid(mask: Grid, grid: Grid, name: SeriesName) -> None:
    """Refuse a mask whose voxels do not lie on those of its volume.

    Raises:
        FindingError: the shapes differ, or a corner lies elsewhere by more than a tenth of a voxel.
    """
    if mask.shape != grid.shape:
        raise _another_grid(
            name,
            seen=f"a mask of {_times(mask.shape)} voxels",
            expected=f"{_times(grid.shape)} voxels, as in the volume",
        )
    worst_mm = corners_apart_mm(mask, grid)
    if worst_mm > SAME_PLACE_VOXELS * min(grid.spacing_mm):
        raise _another_grid(
            name,
            seen=f"a corner of the mask is {worst_mm:.2f} mm from that of the volume",
            expected=f"less than {SAME_PLACE_VOXELS:g} voxel of distance",
        )


def _refuses_odd_headers(read: Callable[_P, LabelArray]) -> Callable[_P, LabelArray]:
    """Turn whatever an odd header raises, and whatever pydicom raises for it, into the error about an unreadable mask."""

    @functools.wraps(read)
    def guarded(*args: _P.args, **options: _P.kwargs) -> LabelArray:
        try:
            return read(*args, **options)
        except Exception as error:
            if has_other_cause(error):
                raise
            name = next(value for value in (*args, *options.values()) if isinstance(value, SeriesName))
            raise _damaged(name, f"an unusable header ({type(error).__name__})") from error

    return guarded


def read_dicom_mask(
    path: Path,
    slices: Sequence[Plane],
    grid: Grid,
    name: SeriesName,
    merges: Sequence[LabelMerge] = (),
    *,
    notices: list[Finding] | None = None,
) -> LabelArray:
    """Return a DICOM segmentation or RT Structure Set on the grid of its series, by the SOP class of the file.

    See `read_dicom_segmentation` and `read_rtstruct`.
    """
    if _is_structure_set(path):
        return read_rtstruct(path, slices, grid, name, merges, notices=notices)
    return read_dicom_segmentation(path, slices, grid, name, merges)


def _is_structure_set(path: Path) -> bool:
    """Return True for a file whose header names the SOP class of RT Structure Sets; False for one that cannot be read, too."""
    try:
        with path.open("rb") as stream:
            header = load_pydicom().dcmread(stream, stop_before_pixels=True, specific_tags=["SOPClassUID"], force=True)
        return STRUCTURE_SET in (header.get("SOPClassUID"), header.file_meta.get("MediaStorageSOPClassUID"))
    except Exception as error:
        if has_other_cause(error):
            raise
        return False


@_refuses_odd_headers
def read_dicom_segmentation(
    path: Path, slices: Sequence[Plane], grid: Grid, name: SeriesName, merges: Sequence[LabelMerge] = ()
) -> LabelArray:
    """Return a DICOM segmentation (BINARY, FRACTIONAL or LABELMAP) on the grid of its series.

    Args:
        slices: planes of the series in the order of the source array.
        grid: of the series, [slice, row, column].
        merges: segment numbers that count as one label.
    Returns:
        uint8 [slice, row, column]; the label is the segment number after merging; slices without a frame are 0.
    Raises:
        FindingError: other rows, columns, spacing, orientation or positions; images that the series lacks; a damaged file; segments
            of different labels that overlap.
    """
    dataset = _read(path, name)
    if (dataset.get("Rows"), dataset.get("Columns")) != grid.shape[1:]:
        raise _another_grid(
            name,
            seen=f"a mask of {dataset.get('Rows')} x {dataset.get('Columns')} pixels",
            expected=f"{grid.shape[1]} x {grid.shape[2]} pixels, as in the series",
        )
    described = {number for number, _ in described_segments(dataset)}
    places = _frame_places(dataset, slices, grid, name, described)
    label_map = LabelMap(grid.shape, merges)
    kind, highest = _kind(dataset, name)
    background = background_of(dataset)
    num_seen = 0
    for place, frame in zip(places, _frames(dataset, name), strict=False):
        num_seen += 1
        if kind == "LABELMAP":
            frame = np.where(frame == background, 0, frame)
            if frame.max() > 255:
                raise _too_many_labels(name, int(frame.max()))
            for number in np.unique(frame[frame > 0]).tolist():
                _check_described(number, described, name)
            label_map.paint(frame.astype(np.uint8), place.index)
        else:
            inside = frame >= FRACTION * highest if kind == "FRACTIONAL" else frame > 0
            label_map.paint(inside * np.uint8(place.segment), place.index)
    if num_seen < len(places):
        raise _damaged(name, f"{num_seen} of {len(places)} frames")
    label_map.check_overlaps(name, dict(described_segments(dataset)), "segment")
    return label_map.labels


def _kind(dataset: Any, name: SeriesName) -> tuple[str, int]:
    """Return the SegmentationType, and the stored value of probability or occupancy 1 (FRACTIONAL)."""
    kind = str(dataset.get("SegmentationType") or "BINARY")
    highest = int(dataset.get("MaximumFractionalValue") or 0)
    if kind not in ("BINARY", "FRACTIONAL", "LABELMAP"):
        raise _damaged(name, "a SegmentationType (0062,0001) other than BINARY, FRACTIONAL and LABELMAP")
    if kind == "FRACTIONAL" and highest < 1:
        raise _damaged(name, "a FRACTIONAL segmentation without MaximumFractionalValue (0062,000E)")
    return kind, highest


@dataclass(frozen=True, slots=True)
class _Place:
    index: int
    segment: int


def _read(path: Path, name: SeriesName) -> Any:
    pydicom = load_pydicom()
    try:
        dataset = pydicom.dcmread(io.BytesIO(path.read_bytes()))
        if "PixelData" not in dataset:
            raise _damaged(name, "no pixel data")
        dataset.get("PerFrameFunctionalGroupsSequence")
    except Exception as error:
        if has_other_cause(error):
            raise
        raise _damaged(name, type(error).__name__) from error
    return dataset


def _frame_places(
    dataset: Any, slices: Sequence[Plane], grid: Grid, name: SeriesName, described: Collection[int]
) -> list[_Place]:
    shared = (dataset.get("SharedFunctionalGroupsSequence") or [None])[0]
    to_index = np.linalg.inv(lps_to_ras(np.asarray(grid.affine)))  # LPS <-> RAS is its own inverse
    by_image = slices_by_image(slices)
    places = []
    groups = dataset.get("PerFrameFunctionalGroupsSequence") or []
    num_frames = int(dataset.get("NumberOfFrames") or 1)
    if len(groups) != num_frames:  # tiled images of pathology have no position for each frame
        raise _damaged(name, f"{num_frames} frames, but the positions of {len(groups)}")
    _check_orientation(shared, groups, grid, name)
    for group in groups:
        position = _item(group, shared, "PlanePositionSequence")
        by_position = None if position is None else _index_of_position(position, to_index, grid, name)
        by_reference = _index_of_reference(group, by_image, name)
        if by_position is not None and by_reference is not None and by_position != by_reference:
            raise _another_grid(
                name,
                seen="a frame that references one image but has the position of another",
                expected="positions as in the referenced images",
            )
        index = by_position if by_position is not None else by_reference
        if index is None:
            raise _another_grid(
                name,
                seen="a frame without position and source image",
                expected="a position or a source image in each frame",
            )
        segment = _item(group, shared, "SegmentIdentificationSequence")
        number = 0 if segment is None else int(segment.ReferencedSegmentNumber)
        if segment is not None:
            _check_described(number, described, name)
        if number > 255:
            raise _too_many_labels(name, number)
        places.append(_Place(index, number))
    return places


def _check_described(number: int, described: Collection[int], name: SeriesName) -> None:
    """Refuse a segment that the pixels or frames of a file use and its SegmentSequence does not describe."""
    if described and number not in described:
        numbers = ", ".join(str(one) for one in sorted(described) if one > 0) or "the background"
        raise _damaged(name, f"segment {number} is used, but the SegmentSequence describes only {numbers}")


def _item(group: Any, shared: Any, keyword: str) -> Any:
    for holder in (group, shared):
        items = None if holder is None else holder.get(keyword)
        if items:
            return items[0]
    return None


def _check_orientation(shared: Any, groups: Sequence[Any], grid: Grid, name: SeriesName) -> None:
    affine = lps_to_ras(np.asarray(grid.affine))
    row, column = affine[:3, 2] / grid.spacing_mm[2], affine[:3, 1] / grid.spacing_mm[1]
    first = groups[0] if groups else shared
    oriented = _item(first, shared, "PlaneOrientationSequence")
    if oriented is not None:
        cosines = np.asarray(oriented.ImageOrientationPatient, dtype=np.float64)
        apart = float(np.abs(cosines - np.concatenate((row, column))).max())
        if apart > COSINE_TOLERANCE:
            raise _another_grid(
                name,
                seen=f"rows or columns of the mask are rotated relative to the series (cosines differ by {apart:.3f})",
                expected="the orientation of the series",
            )
    measures = _item(first, shared, "PixelMeasuresSequence")
    if measures is not None and measures.get("PixelSpacing") is not None:
        spacing = np.asarray(measures.PixelSpacing, dtype=np.float64)
        wanted = np.asarray(grid.spacing_mm[1:])
        if (np.abs(spacing - wanted) * np.asarray(grid.shape[1:]) > SAME_PLACE_VOXELS * wanted).any():
            raise _another_grid(
                name,
                seen=f"pixels of {spacing[0]:.4f} x {spacing[1]:.4f} mm",
                expected=f"{wanted[0]:.4f} x {wanted[1]:.4f} mm, as in the series",
            )


def _index_of_position(item: Any, to_index: npt.NDArray[np.float64], grid: Grid, name: SeriesName) -> int:
    position = np.asarray(item.ImagePositionPatient, dtype=np.float64)
    index, row, column = to_index[:3, :3] @ position + to_index[:3, 3]
    nearest = round(float(index))
    is_beside = abs(index - nearest) > SAME_PLACE_VOXELS or max(abs(row), abs(column)) > SIDEWAYS_TOLERANCE
    if is_beside or not 0 <= nearest < grid.shape[0]:
        raise _another_grid(
            name,
            seen=f"a frame at slice {index:.2f}, row {row:.2f}, column {column:.2f} of the series grid",
            expected=f"an integer slice number from 0 to {grid.shape[0] - 1}, row 0, column 0",
        )
    return nearest


def _index_of_reference(group: Any, by_image: SlicesByImage, name: SeriesName) -> int | None:
    for derivation in group.get("DerivationImageSequence") or ():
        sources: Any = derivation.get("SourceImageSequence") or ()
        if len(sources) != 1:
            continue
        key = image_key(sources[0])
        if key not in by_image:
            raise _another_grid(
                name,
                seen="a frame that references an image missing in the series",
                expected="all images that the mask references (a slice is missing, or the mask belongs to another series)",
            )
        return by_image[key]
    return None


def _frames(dataset: Any, name: SeriesName) -> Iterator[npt.NDArray[Any]]:
    rows, columns = int(dataset.Rows), int(dataset.Columns)
    size, bits = rows * columns, int(dataset.BitsAllocated)
    if str(dataset.file_meta.TransferSyntaxUID) in NATIVE:
        data = dataset.PixelData
        for frame in range(int(dataset.get("NumberOfFrames") or 1)):
            first, last = frame * size * bits, (frame + 1) * size * bits
            part = np.frombuffer(data, dtype=np.uint8)[first // 8 : (last + 7) // 8]
            if len(part) * 8 < last - first // 8 * 8:
                return
            if bits == 1:  # frames follow one another without filling up the byte (DICOM PS3.5, 8.1.1)
                yield np.unpackbits(part, bitorder="little")[first % 8 :][:size].reshape(rows, columns)
            else:
                yield part.view(f"<u{bits // 8}").reshape(rows, columns)
        return
    from pydicom.pixels import iter_pixels

    try:
        yield from iter_pixels(dataset, raw=True)
    except Exception as error:
        raise _damaged(name, f"compressed pixels that cannot be decoded ({type(error).__name__})") from error


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _another_grid(name: SeriesName, *, seen: str, expected: str) -> FindingError:
    return name.refuse(
        "mask-on-another-grid",
        "the mask is not on the grid of its volume.",
        seen=seen,
        expected=expected,
        do="use the mask drawn on this volume, or resample the mask to the grid of the volume",
    )


def _damaged(name: SeriesName, seen: str) -> FindingError:
    return name.refuse(
        "unreadable-mask",
        "the mask cannot be read.",
        seen=seen,
        expected="a complete DICOM segmentation",
        do="copy or export the mask again",
    )


def _too_many_labels(name: SeriesName, number: int) -> FindingError:
    return name.refuse(
        "labels-outside-declared-set",
        "the mask contains a segment number that is too high.",
        seen=f"segment {number}",
        expected="segments 1 to 255",
        do="renumber the segments",
    )
