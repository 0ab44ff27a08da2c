"""The predicted classes as a DICOM Structured Report (Comprehensive SR, template TID 1500)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from medweave_core.contracts.body_parts import procedure_of
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.model import ModelCard
from medweave_steps import __version__
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


def build_report(
    predicted: Sequence[tuple[ImageClass, float]], source: SourceSeries, card: ModelCard, *, model_sha256: str
) -> Any:
    """Return a report with a finding for each predicted class: its code, and its probability as the certainty in percent.

    Classes that were not predicted are not in the report, since readers would show them as findings.

    Args:
        predicted: predicted classes, at least one, each with a code and with its calibrated probability in [0, 1].
        source: the classified images.
        card, model_sha256: the model and the digest of its card.
    Returns:
        highdicom.sr.ComprehensiveSR, ready to be written.
    """
    sr = require("highdicom.sr", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    # Other results are another object, so their digest is part of its UID (DICOM PS3.5, chapter 9: one UID, one content).
    digest = hashlib.sha256(repr([(one.name, _percent(value)) for one, value in predicted]).encode()).hexdigest()
    images = [str(image.SOPInstanceUID) for image in source.images]
    identity = (source.series_uid, *images, model_sha256, digest, __version__)
    report = sr.ComprehensiveSR(
        evidence=list(source.images),
        content=sr.MeasurementReport(
            observation_context=observer(card, model_sha256=model_sha256),
            procedure_reported=concept(procedure_of(modality=card.input.modality)),
            imaging_measurements=[
                _finding(one, value, source, algorithm(card, model_sha256=model_sha256), identity)
                for one, value in predicted
            ],
            title=codes.DCM.ImagingMeasurementReport,
        ),
        series_instance_uid=derived_uid("classification series", *identity),
        sop_instance_uid=derived_uid("classification", *identity),
        series_description=research_text("classification"),
        **document_fields(card, model_sha256=model_sha256),
    )
    settle_times(report, source)
    return report


def _finding(
    one: ImageClass, probability: float, source: SourceSeries, algorithm_id: Any, identity: tuple[str, ...]
) -> Any:
    sr = require("highdicom.sr", extra="segment")
    codes = require("pydicom.sr.codedict", extra="segment").codes
    assert one.code is not None, "a card without codes gets no DICOM output"
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=derived_uid("class", one.name, *identity), identifier=dicom_text(one.name)
        ),
        finding_type=concept(one.code),
        source_images=[
            sr.SourceImageForMeasurementGroup(
                referenced_sop_class_uid=image.SOPClassUID, referenced_sop_instance_uid=image.SOPInstanceUID
            )
            for image in source.images
        ],
        algorithm_id=algorithm_id,
        measurements=[
            sr.Measurement(name=codes.DCM.CertaintyOfFinding, value=_percent(probability), unit=codes.UCUM.Percent)
        ],
    )


def _percent(probability: float) -> float:
    return round(100 * probability, 2)
