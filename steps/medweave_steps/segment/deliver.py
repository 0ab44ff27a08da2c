"""Writes the results of one case into its folder."""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.body_parts import contradiction
from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.segmentations import SegmentedCase
from medweave_core.contracts.volume import VolumeInfo
from medweave_steps import __version__
from medweave_steps.dicom_results.case_headers import header_fault, headers_path, problem_of
from medweave_steps.dicom_results.common import SourceSeries, read_source, values_as_they_are
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.cohort.source_hu import SourceHu
from medweave_steps.io.dicom.source_headers import read_headers
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.nifti.source_grid import write_mask
from medweave_steps.segment.dicom_seg import draft_segmentation, fill_segmentation
from medweave_steps.segment.dicom_sr import build_report
from medweave_steps.segment.lesions import LabelLesions, measure_labels, write_table

NIFTI_MASK, DICOM_MASK = "lesion_mask.nii.gz", "lesion_mask.dcm"
TABLE, STRUCTURED_REPORT = "lesions.csv", "lesions_sr.dcm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The part of a case's DICOM outputs that does not depend on its mask."""

    source: SourceSeries
    segmentation: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDicom:
    """A case without DICOM outputs.

    Attributes:
        reason: why a DICOM source has none; empty for a NIfTI source and for a model card without codes, which concerns all cases.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDelivery:
    """Outputs of one case.

    Attributes:
        no_dicom_reason: that of `NoDicom`; empty for a case with DICOM outputs.
    """

    record: SegmentedCase
    no_dicom_reason: str


def draft_dicom(case: CaseFolder, info: VolumeInfo, card: ModelCard, *, model_sha256: str) -> Draft | NoDicom:
    """Read the source headers of a case and draft its DICOM Segmentation.

    Returns:
        NoDicom for a NIfTI source, for a series of several multi-frame images, whose frames one SEG cannot reference, for images
        whose identifiers are empty, repeated or invalid, for a card with a label without codes, for a case that shows another part
        of the body than the card's labels lie in, and for a header that a DICOM object cannot copy.
    Raises:
        UserInputError: the headers are missing, or are not those of the volume's slices.
    """
    if info.source_format != "dicom" or not all(label.has_codes for label in card.foreground_labels):
        return NoDicom()
    if body_part_finding(info, card):
        return NoDicom(reason="the label codes may not match the scanned body part")
    path = headers_path(case.folder, info.case_id, results="DICOM SEG")
    try:
        with values_as_they_are():
            headers = read_headers(path)
            problem = problem_of(headers)
            if problem:
                return NoDicom(reason=problem)
            source = read_source(headers, info)
            if source is None:
                return NoDicom(reason="the series consists of several multi-frame images")
            segmentation = draft_segmentation(source, info.source_grid.shape, card, model_sha256=model_sha256)
    except Exception as error:
        return NoDicom(reason=header_fault(error))
    return Draft(source=source, segmentation=segmentation)


def body_part_finding(info: VolumeInfo, card: ModelCard) -> Finding | None:
    """Return the finding that a case shows another part of the body than the card's labels; None if nothing indicates it."""
    seen, expected = contradiction(info.body_part, card.labels, has_lungs=info.has_lungs)
    if not seen:
        return None
    return Finding(
        severity="notice",
        code="body-part-differs",
        what=f"{info.case_id}: the body part of the case may differ from that of the model '{card.name}'.",
        seen=seen,
        expected=expected,
        do="do not use the result if the examination does not match the model",
        case_id=info.case_id,
    )


def deliver_case(
    folder: Path,
    label_map: npt.NDArray[np.uint8],
    info: VolumeInfo,
    source_hu: SourceHu | None,
    draft: Draft | NoDicom,
    card: ModelCard,
    *,
    model_sha256: str,
) -> CaseDelivery:
    """Write NIfTI, table and, where there is a draft, segmentation and structured report.

    Args:
        folder: of the case; made here, inside a folder that appears only when it is complete.
        label_map: uint8 values of the card's labels, on the source grid, in source order.
        info: geometry of the case.
        source_hu: source HU of the case, for the mean HU of lesions.
        draft: of the DICOM outputs.
        card, model_sha256: the model and the digest of its card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The NIfTI is mostly compression, which leaves the interpreter free for the rest.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        nifti = pool.submit(write_mask, folder / NIFTI_MASK, label_map, info)
        instance_numbers = draft.source.instance_numbers(label_map.shape[0]) if isinstance(draft, Draft) else ()
        labels = measure_labels(label_map, card.foreground_labels, info, source_hu, instance_numbers)
        write_table(folder / TABLE, labels)
        if isinstance(draft, Draft):
            draft = _try_to_write_dicom(folder, label_map, draft, labels, card, model_sha256)
        nifti.result()
    record = SegmentedCase(
        case_id=info.case_id,
        source_format=info.source_format,
        files={path.name: sha256_of_file(path) for path in sorted(folder.iterdir())},
        num_lesions=sum(len(one.lesions) for one in labels),
        lesion_volume_mm3=round(sum(lesion.volume_mm3 for one in labels for lesion in one.lesions), 2),
        findings=(finding,) if (finding := body_part_finding(info, card)) else (),
        by_label=tuple(one.totals for one in labels) if len(labels) > 1 else (),
    )
    reason = draft.reason if isinstance(draft, NoDicom) else ""
    return CaseDelivery(record=record, no_dicom_reason=reason)


def _try_to_write_dicom(
    folder: Path,
    label_map: npt.NDArray[np.uint8],
    draft: Draft,
    labels: Sequence[LabelLesions],
    card: ModelCard,
    model_sha256: str,
) -> Draft | NoDicom:
    """Write both DICOM outputs and return the draft; NoDicom, and neither output, where the source header prevents it."""
    try:
        with values_as_they_are():
            _write_dicom(folder, label_map, draft, labels, card, model_sha256)
    except Exception as error:
        reason = header_fault(error)
        for name in (DICOM_MASK, STRUCTURED_REPORT):
            (folder / name).unlink(missing_ok=True)
        return NoDicom(reason=reason)
    return draft


def _write_dicom(
    folder: Path,
    label_map: npt.NDArray[np.uint8],
    draft: Draft,
    labels: Sequence[LabelLesions],
    card: ModelCard,
    model_sha256: str,
) -> None:
    # Another mask is another object, so its digest is part of the name (DICOM PS3.5, chapter 9: one UID, one content).
    voxels = np.flatnonzero(label_map)
    digest = hashlib.sha256(voxels.tobytes())
    if len(labels) > 1:
        digest.update(label_map.reshape(-1)[voxels].tobytes())
    identity = (draft.source.series_uid, model_sha256, digest.hexdigest(), __version__)
    fill_segmentation(draft.segmentation, label_map, card, identity=identity)
    draft.segmentation.save_as(folder / DICOM_MASK, enforce_file_format=True)
    report = build_report(labels, draft.segmentation, draft.source, card, identity=identity)
    report.save_as(folder / STRUCTURED_REPORT, enforce_file_format=True)
