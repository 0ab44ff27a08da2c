"""The slice of a series that a reference to an image names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_steps.io.dicom.planes import Plane

SlicesByImage = Mapping[tuple[str, int], int | None]


def slices_by_image(slices: Sequence[Plane]) -> SlicesByImage:
    """Return the index of each slice by SOPInstanceUID and frame; None where several slices have the same.

    Args:
        slices: planes of the series in the order of the source array.
    """
    keys = [(plane.sop_instance_uid, plane.frame if plane.num_frames > 1 else 0) for plane in slices]
    # A reference to a UID that several slices have says nothing; the position must.
    counts = Counter(keys)
    return {key: index if counts[key] == 1 else None for index, key in enumerate(keys)}


def image_key(reference: Any) -> tuple[str, int]:
    """Return SOPInstanceUID and 0-based frame of an item with ReferencedSOPInstanceUID."""
    frames = reference.get("ReferencedFrameNumber")
    frame = 0 if frames is None else int(frames if isinstance(frames, int | str) else frames[0]) - 1
    return str(reference.ReferencedSOPInstanceUID), frame
