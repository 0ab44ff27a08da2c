"""The ground truth of a synthetic patient as DICOM SEG, the same bytes for the same patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import CodedTerm, Label
from medweave_steps.runtime.imports import require

DATE, TIME = "20260101", "120000"


def segment(label: Label, *, tracking_uid: str, tracking_id: str) -> Any:
    """Return the description of a label's segment.

    Args:
        label: with the codes of category and type; one without anatomy names no region.
        tracking_uid, tracking_id: of the structure that the segment shows.
    """
    hd = require("highdicom", extra="phantom")
    codes = require("pydicom.sr.codedict", extra="phantom").codes

    def concept(term: CodedTerm | None) -> Any:
        assert term is not None, "phantoms have coded labels"
        return hd.sr.CodedConcept(value=term.value, scheme_designator=term.scheme, meaning=term.meaning)

    return hd.seg.SegmentDescription(
        segment_number=label.value,
        segment_label=label.name,
        segmented_property_category=concept(label.category),
        segmented_property_type=concept(label.type),
        algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=hd.AlgorithmIdentificationSequence(
            name="medweave phantom", version="1", family=codes.DCM.ArtificialIntelligence
        ),
        tracking_uid=tracking_uid,
        tracking_id=tracking_id,
        anatomic_regions=[concept(label.anatomy)] if label.anatomy else None,
    )


def ground_truth(
    images: list[Any],
    label_KJI: npt.NDArray[np.uint8],
    segments: Sequence[Any],
    uids: Mapping[str, str],
    *,
    model: str,
) -> Any:
    """Return a BINARY DICOM SEG with the frames that are not empty; it references every image of one series.

    Args:
        images: pydicom Datasets of the series, in the order of K.
        label_KJI: values are segment numbers, 0 is background.
        uids: of `truth series`, `truth` and `truth dimensions`.
        model: the generator, as ManufacturerModelName.
    """
    hd = require("highdicom", extra="phantom")
    truth = hd.seg.Segmentation(
        source_images=images,
        pixel_array=label_KJI,
        segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=list(segments),
        series_instance_uid=uids["truth series"],
        series_number=100,
        sop_instance_uid=uids["truth"],
        instance_number=1,
        manufacturer="medweave",
        manufacturer_model_name=model,
        software_versions="1",
        device_serial_number="0",
        content_label="GROUND_TRUTH",
        content_description="Synthetic data, exact ground truth",
        series_description="Ground truth of synthetic data",
        omit_empty_frames=True,
    )
    truth.ContentDate = truth.SeriesDate = truth.InstanceCreationDate = DATE
    truth.ContentTime = truth.SeriesTime = truth.InstanceCreationTime = TIME
    # highdicom draws this UID and reads the clock; the same seed must write the same bytes.
    for contributor in truth.get("ContributingEquipmentSequence", []):
        contributor.ContributionDateTime = DATE + TIME
    for item in (*truth.DimensionOrganizationSequence, *truth.DimensionIndexSequence):
        item.DimensionOrganizationUID = uids["truth dimensions"]
    return truth
