"""A cohort of DICOM files: what is in it, whose it is, and what of it is de-identified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medweave_steps.contracts.cohort import Finding
from medweave_steps.io.dicom_header import (
    CT_IMAGE,
    ENHANCED_CT,
    SECONDARY_CAPTURE,
    SEGMENTATION,
    DicomFile,
    HeaderDefect,
    read_file,
)
from medweave_steps.io.findings import refuse

_IMAGES = frozenset(
    (
        CT_IMAGE,
        *ENHANCED_CT,
        "1.2.840.10008.5.1.4.1.1.4",  # MR
        "1.2.840.10008.5.1.4.1.1.4.1",
        "1.2.840.10008.5.1.4.1.1.4.4",
        "1.2.840.10008.5.1.4.1.1.128",  # PET
        "1.2.840.10008.5.1.4.1.1.128.1",
        "1.2.840.10008.5.1.4.1.1.130",
    )
)
_REPORTS = "1.2.840.10008.5.1.4.1.1.88."  # structured reports, key objects, CAD results, dose reports
_PICTURES_OF_TEXT = {"SCREEN SAVE", "SCREEN_SAVE", "DOSE_INFO", "DOSE INFO", "PATIENT_PROTOCOL"}


@dataclass(slots=True, kw_only=True)
class FoundSeries:
    """Files of one series of one study.

    Attributes:
        ordinal: 1-based, in the order of the paths.
        identity: whose it is: PatientID and issuer; the study where headers name no patient.
        patient_id, issuer: as the headers name them.
    """

    ordinal: int
    series_uid: str
    study_uid: str
    is_image: bool
    identity: str = ""
    patient_id: str = ""
    issuer: str = ""
    files: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class FoundCohort:
    """Series to be de-identified, and what is not.

    Attributes:
        left_aside: number of files by reason.
        findings: errors, by the ordinal of the series they are about; 0 for the cohort.
    """

    series: list[FoundSeries] = field(default_factory=list)
    left_aside: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, Finding]] = field(default_factory=list)


def find_series(cohort: Path, names: Sequence[str]) -> FoundCohort:
    """Reads all headers and groups what is delivered by series.

    Args:
        names: paths relative to the cohort, sorted.
    """
    found = FoundCohort()
    by_uid: dict[tuple[str, str], FoundSeries] = {}  # some writers use one series UID in several studies
    identities: dict[str, set[tuple[str, str]]] = {}
    unreadable: list[int] = []
    for number, name in enumerate(names, start=1):
        try:
            file = _read(cohort, name)
        except ValueError:
            unreadable.append(number)
            continue
        if file is None and name.lower().endswith((".dcm", ".dicom", ".ima")):
            unreadable.append(number)
            continue
        reason = _not_delivered(file)
        if file is None or reason:
            found.left_aside[reason] += 1
            continue
        series = by_uid.get((file.study_uid, file.series_uid))
        if series is None:
            series = FoundSeries(
                ordinal=len(by_uid) + 1,
                series_uid=file.series_uid,
                study_uid=file.study_uid,
                is_image=file.sop_class in _IMAGES,
            )
            by_uid[file.study_uid, file.series_uid] = series
        series.files.append(name)
        if file.defect is not None and series.ordinal not in {ordinal for ordinal, _ in found.findings}:
            found.findings.append((series.ordinal, _defective(series.ordinal, file.defect)))
        identities.setdefault(file.study_uid, set()).add((file.patient_id, file.issuer))
    found.series = list(by_uid.values())
    if unreadable:
        found.left_aside["unreadable"] = len(unreadable)
        found.findings.append((0, _unreadable(unreadable, len(names))))
    _name_patients(found, identities)
    return found


def _read(cohort: Path, name: str) -> DicomFile | None:
    try:
        return read_file(cohort, name)
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None  # the file's name may be a person's


def _not_delivered(file: DicomFile | None) -> str:
    """Why a file is left aside; empty for one that is delivered. What is not known to be cleaned wholly stays at home."""
    if file is None:
        return "not-dicom"
    if file.sop_class.startswith(SECONDARY_CAPTURE) or {word.upper() for word in file.image_type} & _PICTURES_OF_TEXT:
        return "secondary-capture"
    if file.sop_class in _IMAGES or file.sop_class in SEGMENTATION or file.sop_class.startswith(_REPORTS):
        return ""
    return "other-object"


def _name_patients(found: FoundCohort, identities: dict[str, set[tuple[str, str]]]) -> None:
    """A study has one patient; where only some of its headers say who, they say it for all."""
    for series in found.series:
        named = {pair for pair in identities[series.study_uid] if pair[0]}
        if len({patient for patient, _ in named}) > 1:
            found.findings.append((series.ordinal, _mixed(series.ordinal)))
            continue
        if named:
            series.patient_id, series.issuer = max(named)  # with an issuer, where one is named
            series.identity = f"{series.patient_id}\n{series.issuer}"
        else:
            series.identity = f"study {series.study_uid}"


def _defective(ordinal: int, defect: HeaderDefect) -> Finding:
    return refuse(
        defect.code,
        f"series {ordinal}: {defect.what}.",
        seen=defect.seen,
        expected=defect.expected,
        do="export the series again from the archive or the scanner, or leave it out: --on-error skip",
    ).finding


def _mixed(ordinal: int) -> Finding:
    return refuse(
        "mixed-patients",
        f"series {ordinal}: the headers of its study name different patients, so there is no saying whose it is.",
        seen="more than one PatientID (0010,0020) under one StudyInstanceUID",
        expected="one PatientID in all files of a study",
        do="separate the patients' files and export them again, or leave the series out: --on-error skip",
    ).finding


def _unreadable(numbers: Sequence[int], total: int) -> Finding:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return refuse(
        "unreadable-file",
        f"{len(numbers)} of {total} files cannot be read as DICOM.",
        seen=f"damaged or foreign files: number {shown} of the files sorted by path",
        expected="complete DICOM files",
        do="copy or export the files again, or leave them out: --on-error skip",
    ).finding
