"""The label map as a DICOM Segmentation that names the source images: one segment for each label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import Label, joint_title, upper_first
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import Triple
from medweave_steps import __version__
from medweave_steps.dicom_results.common import (
    CONTENT_DESCRIPTION,
    MANUFACTURER,
    SourceSeries,
    concept,
    content_label,
    derived_uid,
    dicom_text,
    research_text,
    settle_times,
)
from medweave_steps.runtime.imports import require

SERIES_NUMBER = 9001
_NOT_YET = "2.25.0"


def draft_segmentation(source: SourceSeries, shape: Triple, card: ModelCard, *, model_sha256: str) -> Any:
    """Return a DICOM Segmentation that lacks its mask and its UIDs, so that it can be made while the network still runs.

    BINARY, Explicit VR Little Endian; a segment for each label, numbered 1, 2, … by ascending value, each with a frame for every
    source slice in the order of the source, one segment after the other. Empty frames are included, also of a label that the case
    does not have, because readers take the spacing from the distance between frames: without them SimpleITK opens the mask with
    wrong geometry. SimpleITK, which does not know segments, shows the slices of all segments as one stack in this order; highdicom,
    dcmqi and 3D Slicer place each frame by its position and segment number.

    Args:
        source: the images.
        shape: of the source array [slice, row, column].
        card, model_sha256: the model that finds the lesions, and the digest of its card.
    Returns:
        highdicom.seg.Segmentation for `fill_segmentation`.
    """
    highdicom = require("highdicom", extra="segment")
    labels = card.foreground_labels
    segmentation = highdicom.seg.Segmentation(
        source_images=source.images,
        # bool spares highdicom the search for values above 1: half of its time.
        pixel_array=np.zeros(shape, dtype=np.bool_ if len(labels) == 1 else np.uint8),
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=[
            _segment(label, number, card, model_sha256) for number, label in enumerate(labels, start=1)
        ],
        series_instance_uid=_NOT_YET,
        series_number=SERIES_NUMBER,
        sop_instance_uid=_NOT_YET,
        instance_number=1,
        manufacturer=MANUFACTURER,
        manufacturer_model_name=card.name[:64],
        software_versions=__version__,
        device_serial_number=model_sha256[:16],
        content_description=CONTENT_DESCRIPTION,
        content_label=content_label(labels),
        series_description=research_text(labels[0].titles if len(labels) == 1 else joint_title(labels)),
        omit_empty_frames=False,
    )
    _reference_source_frames(segmentation, source)
    _put_in_slice_order(segmentation)
    settle_times(segmentation, source)
    return segmentation


def fill_segmentation(
    segmentation: Any, label_map: npt.NDArray[np.uint8], card: ModelCard, *, identity: tuple[str, ...]
) -> None:
    """Complete a draft with its pixels and UIDs; it can then be written.

    Args:
        segmentation: of `draft_segmentation`.
        label_map: uint8 label values, [slice, row, column].
        card: the model, with the labels of the segments.
        identity: parts that the UIDs are derived from: source series, model and mask.
    """
    packed = b"".join(_packed(label_map, [label.value for label in card.foreground_labels]))
    segmentation.PixelData = packed + bytes(len(packed) % 2)
    segmentation.SeriesInstanceUID = derived_uid("segmentation series", *identity)
    segmentation.SOPInstanceUID = derived_uid("segmentation", *identity)
    segmentation.file_meta.MediaStorageSOPInstanceUID = segmentation.SOPInstanceUID
    dimensions = derived_uid("dimensions", *identity)
    for item in (*segmentation.DimensionOrganizationSequence, *segmentation.DimensionIndexSequence):
        item.DimensionOrganizationUID = dimensions


def _packed(label_map: npt.NDArray[np.uint8], values: Sequence[int]) -> Iterator[bytes]:
    """Yield the pixels of all segments, one bit each, first pixel in the lowest bit (DICOM PS3.5, D.1)."""
    flat = label_map.reshape(-1)
    if flat.size % 8 and len(values) > 1:  # the next segment begins inside a byte
        yield np.packbits(np.concatenate([flat == value for value in values]), bitorder="little").tobytes()
        return
    for value in values:
        yield np.packbits(flat == value, bitorder="little").tobytes()


def _segment(label: Label, number: int, card: ModelCard, model_sha256: str) -> Any:
    highdicom = require("highdicom", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    assert label.category is not None
    assert label.type is not None, "a card without codes gets no DICOM output"
    segment = highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=dicom_text(upper_first(label.name)) or label.type.meaning,
        segmented_property_category=concept(label.category),
        segmented_property_type=concept(label.type),
        algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name=card.name[:64],
            family=codes.DCM.ArtificialIntelligence,
            version=f"{card.precision} {model_sha256[:16]}",
            source=MANUFACTURER,
        ),
        anatomic_regions=[concept(label.anatomy)] if label.anatomy else None,
    )
    if label.anatomy and label.laterality:
        segment.AnatomicRegionSequence[0].AnatomicRegionModifierSequence = [concept(label.laterality)]
    return segment


def _reference_source_frames(segmentation: Any, source: SourceSeries) -> None:
    """Replace frame references by the frame numbers of the source file; highdicom's header had only the kept slices."""
    numbers = sorted(source.frames)
    for group in segmentation.PerFrameFunctionalGroupsSequence if numbers else ():
        for derivation in group.DerivationImageSequence:
            for image in derivation.SourceImageSequence:
                image.ReferencedFrameNumber = numbers[int(image.ReferencedFrameNumber) - 1] + 1


def _put_in_slice_order(segmentation: Any) -> None:
    """Make frame n of each segment show slice n of the source.

    highdicom stores frames against the slice normal; SimpleITK then opens a mirrored array with a left-handed direction, right in
    space but not voxel by voxel with the series.
    """
    groups = list(segmentation.PerFrameFunctionalGroupsSequence)
    shared = segmentation.SharedFunctionalGroupsSequence[0]
    cosines = np.asarray(shared.PlaneOrientationSequence[0].ImageOrientationPatient, dtype=np.float64)
    normal = np.cross(cosines[:3], cosines[3:])
    place = [normal @ np.asarray(g.PlanePositionSequence[0].ImagePositionPatient, dtype=np.float64) for g in groups]
    num_slices, segment = len(groups), [1] * len(groups)
    if len(segmentation.SegmentSequence) > 1:  # with one, it is in the shared functional groups
        segment = [int(g.SegmentIdentificationSequence[0].ReferencedSegmentNumber) for g in groups]
        num_slices //= len(segmentation.SegmentSequence)
    ordered = [groups[frame] for frame in np.lexsort((np.asarray(place), np.asarray(segment)))]
    for number, group in enumerate(ordered):
        content = group.FrameContentSequence[0]
        content.DimensionIndexValues = [content.DimensionIndexValues[0], number % num_slices + 1]
    segmentation.PerFrameFunctionalGroupsSequence = ordered
