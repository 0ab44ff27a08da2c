"""The lesion table as a DICOM Structured Report (Comprehensive 3D SR, template TID 1500)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from medweave_core.contracts.body_parts import procedure_of
from medweave_core.contracts.labels import Label, joint_title, upper_first
from medweave_core.contracts.model import ModelCard
from medweave_steps.dicom_results.common import (
    SourceSeries,
    concept,
    derived_uid,
    dicom_text,
    research_text,
    settle_times,
)
from medweave_steps.dicom_results.report_parts import algorithm, document_fields, observer
from medweave_steps.runtime.imports import require
from medweave_steps.segment.lesions import LabelLesions, Lesion


def build_report(
    labels: Sequence[LabelLesions],
    segmentation: Any,
    source: SourceSeries,
    card: ModelCard,
    *,
    identity: tuple[str, ...],
) -> Any:
    """Return a measurement report: for each label the number of lesions, and for each of these its volume, longest diameter and
    (of CT) mean HU.

    Each lesion has a tracking identifier, the segmentation and source images that show it, and its center (LPS, mm).

    Args:
        labels: the lesion table.
        segmentation: the DICOM Segmentation that it belongs to.
        source: the images.
        card: the model that found the lesions.
        identity: parts that the UIDs are derived from.
    Returns:
        highdicom.sr.Comprehensive3DSR, ready to be written.
    """
    sr = require("highdicom.sr", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    groups = []
    for one in labels:
        # The identifiers of a model with one label are those of older versions.
        place = (str(one.segment),) if len(labels) > 1 else ()
        groups.append(_count(one, segmentation, (*place, *identity)))
        groups += [
            _lesion(lesion, one, segmentation, source, algorithm(card, model_sha256=identity[1]), (*place, *identity))
            for lesion in one.lesions
        ]
    report = sr.Comprehensive3DSR(
        evidence=[segmentation, *source.images],
        content=sr.MeasurementReport(
            observation_context=observer(card, model_sha256=identity[1]),
            procedure_reported=concept(procedure_of(*card.foreground_labels, modality=card.input.modality)),
            imaging_measurements=groups,
            title=codes.DCM.ImagingMeasurementReport,
        ),
        series_instance_uid=derived_uid("report series", *identity),
        sop_instance_uid=derived_uid("report", *identity),
        series_description=research_text(_title(card.foreground_labels)),
        **document_fields(card, model_sha256=identity[1]),
    )
    settle_times(report, source)
    return report


def _title(labels: Sequence[Label]) -> str:
    return f"{labels[0].title} measurements" if len(labels) == 1 else f"measurements: {joint_title(labels)}"


def _finding(label: Label) -> Any:
    assert label.type is not None, "a card without codes gets no DICOM output"
    return concept(label.type)


def _sites(label: Label) -> list[Any] | None:
    if label.anatomy is None:
        return None
    sr = require("highdicom.sr", extra="segment")
    laterality = concept(label.laterality) if label.laterality else None
    return [sr.FindingSite(anatomic_location=concept(label.anatomy), laterality=laterality)]


def _count(one: LabelLesions, segmentation: Any, identity: tuple[str, ...]) -> Any:
    sr = require("highdicom.sr", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    number = sr.CodedConcept("246206008", "SCT", "Number of lesions")
    # Template 1500 requires at least one group: a scan without lesions has one that says so.
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=derived_uid("all lesions", *identity), identifier=dicom_text(f"All {one.label.titles}")
        ),
        finding_type=_finding(one.label),
        source_images=[
            sr.SourceImageForMeasurementGroup(
                referenced_sop_class_uid=segmentation.SOPClassUID,
                referenced_sop_instance_uid=segmentation.SOPInstanceUID,
            )
        ],
        finding_sites=_sites(one.label),
        measurements=[sr.Measurement(name=number, value=len(one.lesions), unit=codes.UCUM.NoUnits)],
    )


def _lesion(
    lesion: Lesion,
    one: LabelLesions,
    segmentation: Any,
    source: SourceSeries,
    algorithm_id: Any,
    identity: tuple[str, ...],
) -> Any:
    sr = require("highdicom.sr", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    group = sr.VolumetricROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=derived_uid("lesion", str(lesion.lesion), *identity),
            identifier=f"{dicom_text(upper_first(one.label.title), 56)} {lesion.lesion}",
        ),
        referenced_segment=sr.ReferencedSegment(
            sop_class_uid=segmentation.SOPClassUID,
            sop_instance_uid=segmentation.SOPInstanceUID,
            segment_number=one.segment,
            source_images=[
                sr.SourceImageForSegmentation(image.SOPClassUID, image.SOPInstanceUID, frames)
                for image, frames in source.references(lesion.first_slice, lesion.last_slice)
            ],
        ),
        finding_type=_finding(one.label),
        finding_sites=_sites(one.label),
        algorithm_id=algorithm_id,
        measurements=[
            sr.Measurement(name=codes.SCT.Volume, value=round(lesion.volume_mm3, 2), unit=codes.UCUM.CubicMillimeter),
            sr.Measurement(
                name=codes.SCT.LongAxis, value=round(lesion.longest_diameter_mm, 2), unit=codes.UCUM.Millimeter
            ),
            *_mean_hu(lesion),
        ],
    )
    # All lesions of a label are one segment, and a segment reference may not name frames: the centre says which of them this is.
    r, a, s = lesion.centre_ras_mm
    group[0].ContentSequence.append(
        sr.Scoord3DContentItem(
            name=codes.DCM.Center,
            graphic_type=sr.GraphicTypeValues3D.POINT,
            graphic_data=np.array([[-r, -a, s]]),
            frame_of_reference_uid=source.images[0].FrameOfReferenceUID,
            relationship_type=sr.RelationshipTypeValues.CONTAINS,
        )
    )
    return group


def _mean_hu(lesion: Lesion) -> list[Any]:
    """Return the mean HU as a measurement; none where the case has no source HU."""
    if lesion.mean_hu is None:
        return []
    sr = require("highdicom.sr", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    return [
        sr.Measurement(
            name=codes.DCM.AttenuationCoefficient,
            value=round(lesion.mean_hu, 1),
            unit=codes.UCUM.HounsfieldUnit,
            derivation=codes.SCT.Mean,
        )
    ]
