"""The mask as a DICOM Segmentation that names the source images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import upper_first
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import Triple
from medweave_steps import __version__
from medweave_steps.runtime.imports import require
from medweave_steps.segment.dicom_common import (
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

SERIES_NUMBER = 9001
_NOT_YET = "2.25.0"


def draft_segmentation(source: SourceSeries, shape: Triple, card: ModelCard, *, model_sha256: str) -> Any:
    """Return a DICOM Segmentation that lacks its mask and its UIDs, so that it can be made while the network still runs.

    BINARY, Explicit VR Little Endian, one segment, frame n for source slice n. Empty frames are included because readers take the
    spacing from the distance between frames: without them SimpleITK opens the mask with wrong geometry.

    Args:
        source: the images.
        shape: of the source array [slice, row, column].
        card, model_sha256: the model that finds the lesions, and the digest of its card.
    Returns:
        highdicom.seg.Segmentation for `fill_segmentation`.
    """
    highdicom = require("highdicom", extra="segment")
    segmentation = highdicom.seg.Segmentation(
        source_images=source.images,
        # bool spares highdicom the search for values above 1: half of its time.
        pixel_array=np.zeros(shape, dtype=np.bool_),
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=[_segment(card, model_sha256)],
        series_instance_uid=_NOT_YET,
        series_number=SERIES_NUMBER,
        sop_instance_uid=_NOT_YET,
        instance_number=1,
        manufacturer=MANUFACTURER,
        manufacturer_model_name=card.name[:64],
        software_versions=__version__,
        device_serial_number=model_sha256[:16],
        content_description=CONTENT_DESCRIPTION,
        content_label=content_label(card.label),
        series_description=research_text(card.label.titles),
        omit_empty_frames=False,
    )
    _reference_source_frames(segmentation, source)
    _put_in_slice_order(segmentation)
    settle_times(segmentation, source)
    return segmentation


def fill_segmentation(segmentation: Any, mask: npt.NDArray[np.uint8], *, identity: tuple[str, ...]) -> None:
    """Complete a draft with its pixels and UIDs; it can then be written.

    Args:
        segmentation: of `draft_segmentation`.
        mask: uint8, 0 or 1, [slice, row, column].
        identity: parts that the UIDs are derived from: source series, model and mask.
    """
    packed = np.packbits(
        mask.reshape(-1), bitorder="little"
    ).tobytes()  # DICOM PS3.5, D.1: first pixel in the lowest bit
    segmentation.PixelData = packed + bytes(len(packed) % 2)
    segmentation.SeriesInstanceUID = derived_uid("segmentation series", *identity)
    segmentation.SOPInstanceUID = derived_uid("segmentation", *identity)
    segmentation.file_meta.MediaStorageSOPInstanceUID = segmentation.SOPInstanceUID
    dimensions = derived_uid("dimensions", *identity)
    for item in (*segmentation.DimensionOrganizationSequence, *segmentation.DimensionIndexSequence):
        item.DimensionOrganizationUID = dimensions


def _segment(card: ModelCard, model_sha256: str) -> Any:
    highdicom = require("highdicom", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    label = card.label
    assert label.category is not None
    assert label.type is not None, "a card without codes gets no DICOM output"
    segment = highdicom.seg.SegmentDescription(
        segment_number=1,
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
    """Make frame n show slice n of the source.

    highdicom stores frames against the slice normal; SimpleITK then opens a mirrored array with a left-handed direction, right in
    space but not voxel by voxel with the series.
    """
    groups = list(segmentation.PerFrameFunctionalGroupsSequence)
    shared = segmentation.SharedFunctionalGroupsSequence[0]
    cosines = np.asarray(shared.PlaneOrientationSequence[0].ImageOrientationPatient, dtype=np.float64)
    normal = np.cross(cosines[:3], cosines[3:])
    place = [normal @ np.asarray(g.PlanePositionSequence[0].ImagePositionPatient, dtype=np.float64) for g in groups]
    ordered = [groups[frame] for frame in np.argsort(place)]
    for number, group in enumerate(ordered, start=1):
        content = group.FrameContentSequence[0]
        content.DimensionIndexValues = [content.DimensionIndexValues[0], number]
    segmentation.PerFrameFunctionalGroupsSequence = ordered
