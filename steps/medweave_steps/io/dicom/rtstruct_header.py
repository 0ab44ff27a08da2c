"""The sequences of an RT Structure Set: names of its ROIs, contours, and the series and images that it references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.io.dicom.values import HeaderValues

STRUCTURE_SET = "1.2.840.10008.5.1.4.1.1.481.3"


def described_rois(dataset: Any) -> tuple[tuple[int, str], ...]:
    """Return number and name of each ROI of an RT Structure Set that has a contour."""
    drawn = {number for number, contours in contours_of(dataset) if contours}
    return tuple((number, text) for number, text in names_of(dataset) if number in drawn)


def referenced_objects(dataset: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the SeriesInstanceUIDs that an RT Structure Set references, and the SOPInstanceUIDs of the images."""
    images = listed_images(dataset) or [
        str(image.ReferencedSOPInstanceUID)
        for _, contours in contours_of(dataset)
        for contour in contours
        for image in contour.get("ContourImageSequence") or ()
    ]
    series = [str(item.SeriesInstanceUID) for item in _referenced_series(dataset) if item.get("SeriesInstanceUID")]
    return tuple(dict.fromkeys(series)), tuple(dict.fromkeys(images))


def names_of(dataset: Any) -> list[tuple[int, str]]:
    """Return number and name of each ROI that StructureSetROISequence describes."""
    items = dataset.get("StructureSetROISequence") or ()
    return [(int(item.ROINumber), str(item.get("ROIName") or "").strip()) for item in items]


def contours_of(dataset: Any) -> list[tuple[int, Sequence[Any]]]:
    """Return the ROI number and the contours of each item of ROIContourSequence."""
    items = dataset.get("ROIContourSequence") or ()
    return [(int(item.ReferencedROINumber), item.get("ContourSequence") or ()) for item in items]


def points_of(contour: Any) -> npt.NDArray[np.float64]:
    """Return the points of a contour, float64 of shape (n, 3), LPS, mm.

    Raises:
        ValueError: coordinates that are not finite numbers, or not triplets; the text completes "a contour with".
    """
    data = contour.get_item("ContourData")
    value = b"" if data is None or data.value is None else data.value
    # Raw text: pydicom would make an object of every number.
    words = value.strip(b" \0").split(b"\\") if isinstance(value, bytes) else list(np.atleast_1d(value))
    try:
        numbers = np.asarray([float(word) for word in words] if words != [b""] else [])
    except ValueError:
        numbers = np.asarray([np.nan])
    if not np.isfinite(numbers).all():
        raise ValueError("a coordinate that is not a finite number")
    if len(numbers) % 3:
        raise ValueError(f"{len(numbers)} coordinates, not triplets")
    return numbers.reshape(-1, 3)


def frames_of_reference(dataset: Any) -> Sequence[Any]:
    """Return the items of ReferencedFrameOfReferenceSequence."""
    return dataset.get("ReferencedFrameOfReferenceSequence") or ()


def frames_by_roi(dataset: Any) -> dict[int, set[str]]:
    """Return the frames of reference that StructureSetROISequence names for each ROI number; more than one only by mistake."""
    frames: dict[int, set[str]] = {}
    for item in dataset.get("StructureSetROISequence") or ():
        if uid := HeaderValues(item).text("ReferencedFrameOfReferenceUID"):
            frames.setdefault(int(item.ROINumber), set()).add(uid)
    return frames


def listed_images(dataset: Any) -> list[str]:
    """Return the SOPInstanceUIDs of the images that a structure set lists for its series."""
    items = _referenced_series(dataset)
    return [str(image.ReferencedSOPInstanceUID) for item in items for image in item.get("ContourImageSequence") or ()]


def _referenced_series(dataset: Any) -> Iterator[Any]:
    for frame in frames_of_reference(dataset):
        for study in frame.get("RTReferencedStudySequence") or ():
            yield from study.get("RTReferencedSeriesSequence") or ()
