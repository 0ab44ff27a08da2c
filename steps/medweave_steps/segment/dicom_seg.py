"""The mask as a DICOM Segmentation that names the source images."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps import __version__
from medweave_steps.contracts.model import ModelCard
from medweave_steps.runtime.imports import require
from medweave_steps.segment.dicom_common import (
    CONTENT_DESCRIPTION,
    MANUFACTURER,
    Source,
    derived_uid,
    settle_times,
)

SERIES_NUMBER = 9001


def build_segmentation(
    mask: npt.NDArray[np.uint8], source: Source, card: ModelCard, *, identity: tuple[str, ...]
) -> Any:
    """A DICOM Segmentation: BINARY, Explicit VR Little Endian, one segment, frame n for source slice n, empty ones too.

    Empty frames are kept because readers take the spacing from the distance between frames: without them SimpleITK opens
    the mask with wrong geometry.

    Args:
        mask: uint8, 0 or 1, [slice, row, column].
        source: the images.
        card: the model that found the lesions.
        identity: what the UIDs are made from: source series, model and mask.
    Returns:
        highdicom.seg.Segmentation, ready to be written.
    """
    highdicom = require("highdicom", extra="segment")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # highdicom's remarks on the source would quote its values
        segmentation = highdicom.seg.Segmentation(
            source_images=source.images,
            # bool spares highdicom the search for values above 1: half of its time.
            pixel_array=source.in_image_order(mask).view(np.bool_),
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[_segment(card, identity)],
            series_instance_uid=derived_uid("segmentation series", *identity),
            series_number=SERIES_NUMBER,
            sop_instance_uid=derived_uid("segmentation", *identity),
            instance_number=1,
            manufacturer=MANUFACTURER,
            manufacturer_model_name=card.name[:64],
            software_versions=__version__,
            device_serial_number=identity[1][:16],
            content_description=CONTENT_DESCRIPTION,
            content_label="LUNG_NODULES",
            series_description="Lung nodules (research use only)",
            omit_empty_frames=False,
        )
    _put_in_slice_order(segmentation, mask)
    settle_times(segmentation, source)
    _settle_dimension_uid(segmentation, derived_uid("dimensions", *identity))
    return segmentation


def _segment(card: ModelCard, identity: tuple[str, ...]) -> Any:
    highdicom = require("highdicom", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    return highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label=card.labels.get("1", "nodule").capitalize()[:64],
        segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
        segmented_property_type=codes.SCT.Nodule,
        algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name=card.name[:64],
            family=codes.DCM.ArtificialIntelligence,
            version=f"{card.precision} {identity[1][:16]}",
            source=MANUFACTURER,
        ),
        anatomic_regions=[codes.SCT.Lung],
    )


def _put_in_slice_order(segmentation: Any, mask: npt.NDArray[np.uint8]) -> None:
    """Makes frame n show slice n of the source.

    highdicom stores frames against the slice normal; SimpleITK then opens a mirrored array with a left-handed direction, right in
    space but not voxel by voxel beside the series.
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
    packed = np.packbits(
        mask.reshape(-1), bitorder="little"
    ).tobytes()  # DICOM PS3.5, D.1: first pixel in the lowest bit
    segmentation.PixelData = packed + bytes(len(packed) % 2)


def _settle_dimension_uid(segmentation: Any, uid: str) -> None:
    for item in segmentation.DimensionOrganizationSequence:
        item.DimensionOrganizationUID = uid
    for item in segmentation.DimensionIndexSequence:
        item.DimensionOrganizationUID = uid
