"""Writes the DICOM result of one case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.classifications import STRUCTURED_REPORT, ClassifiedCase
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import VolumeInfo
from medweave_steps.classify.dicom_sr import build_report
from medweave_steps.dicom_results.case_headers import header_fault, headers_path, problem_of
from medweave_steps.dicom_results.common import read_whole_source, values_as_they_are
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.dicom.source_headers import read_headers
from medweave_steps.io.hashing import sha256_of_file


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDelivery:
    """Outputs of one case.

    Attributes:
        no_dicom_reason: why a DICOM source has no report; empty for other sources, for a model card without codes, which concerns
            all cases, and for a case with a report.
    """

    record: ClassifiedCase
    no_dicom_reason: str


def has_codes(card: ModelCard) -> bool:
    """Return True if the card declares a code for each class: a report of some classes only would be misread."""
    return all(one.code is not None for one in card.classes)


def deliver_case(
    output: Path,
    case: CaseFolder,
    info: VolumeInfo,
    classes: tuple[str, ...],
    probabilities: Mapping[str, float],
    card: ModelCard,
    *,
    model_sha256: str,
) -> CaseDelivery:
    """Write the structured report of a DICOM case, if there is something to report, and return the record.

    Args:
        output: folder of the batch; the case's own is made where it has a file.
        classes: predicted classes.
        probabilities: of each class, calibrated.
    Raises:
        UserInputError: the source headers are missing.
    """
    folder = output / info.case_id
    reason = ""
    if info.source_format == "dicom" and has_codes(card):
        predicted = [(one, probabilities[one.name]) for one in card.classes if one.name in classes]
        path = headers_path(case.folder, info.case_id, results="DICOM SR")
        reason = _try_to_write(folder, path, predicted, card, model_sha256)
    files = {STRUCTURED_REPORT: sha256_of_file(folder / STRUCTURED_REPORT)} if folder.is_dir() else {}
    record = ClassifiedCase(
        case_id=info.case_id,
        source_format=info.source_format,
        files=files,
        classes=classes,
        probabilities=probabilities,
    )
    return CaseDelivery(record=record, no_dicom_reason=reason)


def _try_to_write(
    folder: Path, headers_file: Path, predicted: Sequence[tuple[ImageClass, float]], card: ModelCard, model_sha256: str
) -> str:
    """Write the report and return an empty text; or return why there is none, and leave no file."""
    if not predicted:
        return "no class reaches its threshold, so there is no finding"
    try:
        with values_as_they_are():
            headers = read_headers(headers_file)
            problem = problem_of(headers)
            if problem:
                return problem
            report = build_report(predicted, read_whole_source(headers), card, model_sha256=model_sha256)
            folder.mkdir()
            report.save_as(folder / STRUCTURED_REPORT, enforce_file_format=True)
    except Exception as error:
        reason = header_fault(error)
        if folder.is_dir():
            (folder / STRUCTURED_REPORT).unlink(missing_ok=True)
            folder.rmdir()
        return reason
    return ""
