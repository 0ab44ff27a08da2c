"""Removal of faces from DICOM images: every pixel outside of a brain mask gets the value of air."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.body_parts import regions_of
from medweave_steps.deidentify.faces import FaceState
from medweave_steps.deidentify.pixels import planes_of
from medweave_steps.io.cohort.brain_mask import BrainMask, Mask, contour_outside, label_outside, wrong_grid
from medweave_steps.io.dicom.frames import Frame, frames_of, is_slice
from medweave_steps.io.dicom.header import EXPLICIT_BIG_ENDIAN, NATIVE, body_part_of
from medweave_steps.io.dicom.rtstruct_header import (
    contours_of,
    frames_by_roi,
    frames_of_reference,
    points_of,
    referenced_objects,
)
from medweave_steps.io.dicom.values import HeaderValues
from medweave_steps.io.findings import FindingError, refuse

AIR_HU = -1000.0
_EXPLICIT = "1.2.840.10008.1.2.1"
_EXTREMES = ("SmallestImagePixelValue", "LargestImagePixelValue")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskOfFrame:
    """The brain mask of one frame of reference.

    Attributes:
        frame_of_reference: UID in the source.
        ordinal: of the series that the mask was made from; both have the same grid.
    """

    path: Path
    frame_of_reference: str
    ordinal: int


@dataclass(slots=True)
class Defacer:
    """Applies the brain masks of a patient to the images of one series, and checks its segmentations and structure sets.

    Attributes:
        ordinal: of the series.
        mask_by_series: the mask that applies to each image series of the patient, by its UID in the source; None where none does.
        resampled: True once an image was not on the grid of its mask.
    """

    masks: Sequence[MaskOfFrame]
    ordinal: int
    mask_by_series: Mapping[str, MaskOfFrame | None] = field(default_factory=dict)
    resampled: bool = False
    _brains: dict[Path, BrainMask] = field(default_factory=dict, init=False)
    _num_pixels: int = field(default=0, init=False)

    def deface(self, dataset: Any, syntax: str, face: FaceState) -> str | None:
        """Set the pixels outside of the brain to the value of air, in place.

        The mask of another series applies to scans of the head only, and to scans without body part: of a larger scan it would
        remove the body.

        Args:
            dataset: pydicom Dataset of an image of slices.
            syntax: its transfer syntax.
            face: whether the image may show one.
        Returns:
            the new transfer syntax: changed pixels are not compressed; None for an image that no mask applies to, which is
            unchanged.
        Raises:
            FindingError: the mask is unusable, or not on the grid of the series that it was made from.
        """
        mask = mask_of_image(dataset, self.masks, self.ordinal, face)
        if mask is None:
            return None
        frames, planes = frames_of(HeaderValues(dataset)), []
        for frame, plane in zip(frames, planes_of(dataset, syntax), strict=True):
            sampled = self._brain(mask).keep_of_frame(frame, *plane.shape)
            if sampled is None:
                return None
            keep, is_on_grid = sampled
            if mask.ordinal == self.ordinal:
                self._num_pixels += keep.size
                if not is_on_grid:
                    raise wrong_grid(f"series {self.ordinal}")
            self.resampled |= not is_on_grid
            planes.append(_blanked(plane, keep, _air(frame)))
        _store(dataset, planes, syntax)
        return syntax if syntax in NATIVE else _EXPLICIT

    def finish(self) -> None:
        """Raise FindingError if the series and its own mask have different numbers of voxels."""
        own = [mask for mask in self.masks if mask.ordinal == self.ordinal]
        if own and self._num_pixels != self._brain(own[0]).brain_IJK.size:
            raise wrong_grid(f"series {self.ordinal}")

    def check_segments(self, dataset: Any) -> None:
        """Raise FindingError for a segmentation with voxels that the mask removes from the images.

        A segmentation is checked if it is in the frame of reference of a mask or references a defaced series, unless all series
        that it references are images that no mask applies to.
        """
        frame = HeaderValues(dataset).text("FrameOfReferenceUID")
        series = [
            HeaderValues(item).text("SeriesInstanceUID") for item in dataset.get("ReferencedSeriesSequence") or ()
        ]
        if series and all(uid in self.mask_by_series and self.mask_by_series[uid] is None for uid in series):
            return
        mask = _mask_in_frame(dataset, self.masks, self.ordinal)
        masks = self._masks_of_series(series, {frame} - {""}) if mask is None else [mask]
        if not masks and not self._has_defaced(series):
            return
        outside = max(self._count_labels_outside(dataset, one) for one in masks or (None,))
        if outside:
            raise label_outside(f"series {self.ordinal}", outside)

    def check_contours(self, dataset: Any) -> None:
        """Raise FindingError for a structure set with contours in the part of the images that the mask removes.

        The contours of an ROI are compared with the mask of its own frame of reference, where it names one with a mask, else with
        the masks of all frames that the file names.
        """
        by_roi = frames_by_roi(dataset)
        named = {
            HeaderValues(item).text("FrameOfReferenceUID") for item in (dataset, *frames_of_reference(dataset))
        }.union(*by_roi.values()) - {""}
        series, _ = referenced_objects(dataset)
        first = {mask.frame_of_reference: mask for mask in reversed(self.masks) if mask.frame_of_reference in named}
        masks = list(first.values()) or self._masks_of_series(series, named)
        if not masks and not self._has_defaced(series):
            return
        outside = 0
        for number, contours in contours_of(dataset):
            own = [mask for mask in masks if mask.frame_of_reference in by_roi.get(number, ())] or masks
            for points in map(points_of, contours):
                outside += max((self._brain(mask).count_outside(points) for mask in own), default=len(points))
        if outside:
            raise contour_outside(f"series {self.ordinal}", outside)

    def _has_defaced(self, series: Sequence[str]) -> bool:
        return any(self.mask_by_series.get(uid) for uid in series)

    def _masks_of_series(self, series: Sequence[str], frames: Set[str]) -> list[MaskOfFrame]:
        """Return the masks of the defaced ones of these series, without those of a frame of reference that is not in `frames`.

        Args:
            frames: that a file names; without any, the masks of all these series apply.
        """
        masks = dict.fromkeys(mask for uid in series if (mask := self.mask_by_series.get(uid)) is not None)
        return [mask for mask in masks if not frames or not mask.frame_of_reference]

    def _count_labels_outside(self, dataset: Any, mask: MaskOfFrame | None) -> int:
        """Return how many labelled pixels the mask removes: all without a mask, and all of a frame without usable geometry."""
        pixels = dataset.pixel_array.reshape(-1, int(dataset.Rows), int(dataset.Columns))
        outside = 0
        for frame, plane in zip(frames_of(HeaderValues(dataset)), pixels, strict=True):
            sampled = None if mask is None else self._brain(mask).keep_of_frame(frame, *plane.shape)
            outside += int(np.count_nonzero(plane if sampled is None else plane[~sampled[0]]))
        return outside

    def _brain(self, mask: MaskOfFrame) -> BrainMask:
        if mask.path not in self._brains:
            self._brains[mask.path] = BrainMask.read(mask.path, f"series {mask.ordinal}")
        return self._brains[mask.path]


def has_only_slices(dataset: Any) -> bool:
    """Return False for a localizer, a projection or a color picture, to which no mask applies."""
    values = HeaderValues(dataset)
    num_samples, photometric = values.integer("SamplesPerPixel") or 1, values.text("PhotometricInterpretation")
    return all(is_slice(frame.frame_type, num_samples, photometric) for frame in frames_of(values))


def mask_of_image(dataset: Any, masks: Sequence[MaskOfFrame], ordinal: int, face: FaceState) -> MaskOfFrame | None:
    """Return the mask that applies to an image: the one of its series, else one in its frame of reference if it shows only a head.

    Args:
        masks: of the patient.
        ordinal: of the series.
        face: whether the image may show one.
    """
    mask = _mask_in_frame(dataset, masks, ordinal)
    is_head = face not in ("absent", "removed") and regions_of(body_part_of(dataset)) <= {"head"}
    return mask if mask is not None and (mask.ordinal == ordinal or is_head) else None


def _mask_in_frame(dataset: Any, masks: Sequence[MaskOfFrame], ordinal: int) -> MaskOfFrame | None:
    """Return the mask of the series, else the first in the dataset's frame of reference."""
    own = [mask for mask in masks if mask.ordinal == ordinal]
    frame_of_reference = HeaderValues(dataset).text("FrameOfReferenceUID")
    same = [mask for mask in masks if frame_of_reference and mask.frame_of_reference == frame_of_reference]
    return next(iter([*own, *same]), None)


def not_defaced(ordinal: int) -> FindingError:
    """Return the error for an image that may show a face where the output must be de-identified."""
    return refuse(
        "face",
        f"series {ordinal}: the images may show a face.",
        seen="a scan of the head, or MR or PET without BodyPartExamined (0018,0015), and no brain mask for all of its images",
        expected="scans without faces, because this run must write de-identified data",
        do="give masks with --brain-masks, declare --faces absent if no face is visible, or skip with --on-error skip",
    )


def _blanked(plane_JI: Any, keep_JI: Mask, stored: int) -> Any:
    """Return a plane of stored values whose pixels outside of the mask have one value."""
    limits = np.iinfo(plane_JI.dtype)
    blank = np.array(min(max(stored, limits.min), limits.max), plane_JI.dtype)
    return np.where(keep_JI, plane_JI, blank).astype(plane_JI.dtype)


def _air(frame: Frame) -> int:
    """Return the stored value of air: PixelPaddingValue, else -1000 HU in CT and 0 in MR and PET, within the stored bits."""
    values = frame.values
    signed = values.integer("PixelRepresentation") == 1
    bits = values.integer("BitsStored") or values.integer("BitsAllocated") or 16
    lowest, highest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    padding = values.integer("PixelPaddingValue")
    if padding is not None and lowest <= padding <= highest:
        return padding
    sequence = "PixelValueTransformationSequence"
    slope = frame.number_of("RescaleSlope", sequence) or 1.0
    intercept = frame.number_of("RescaleIntercept", sequence) or 0.0
    value = AIR_HU if values.text("Modality") == "CT" else 0.0
    return min(max(round((value - intercept) / slope), lowest), highest)


def _store(dataset: Any, planes: list[Any], syntax: str) -> None:
    """Set the pixels, in the byte order of a native syntax, else little endian."""
    order = ">" if syntax == EXPLICIT_BIG_ENDIAN else "<"
    content = b"".join(plane.astype(plane.dtype.newbyteorder(order)).tobytes() for plane in planes)
    dataset.PixelData = content + bytes(len(content) % 2)
    if syntax not in NATIVE:
        dataset["PixelData"].VR = "OB" if planes[0].dtype.itemsize == 1 else "OW"
    dataset["PixelData"].is_undefined_length = False
    for keyword in _EXTREMES:
        if keyword in dataset:
            delattr(dataset, keyword)
    dataset.RecognizableVisualFeatures = "NO"
