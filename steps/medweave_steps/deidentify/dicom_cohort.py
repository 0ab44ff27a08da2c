"""The series of a cohort of DICOM files, their patients, and the files that are not de-identified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.cohort.patients import issuers_by_patient_id, joined_issuer, without_absent_issuers
from medweave_steps.io.dicom.duplicates import find_same_uids
from medweave_steps.io.dicom.header import (
    CT_IMAGE,
    ENHANCED_CT,
    MASKS,
    SECONDARY_CAPTURE,
    DicomFile,
    HeaderDefect,
    is_named_as_dicom,
    read_file,
)
from medweave_steps.io.findings import first_of, refuse
from medweave_steps.io.image.radiograph import RADIOGRAPH_CLASSES, RADIOGRAPHS

_VOLUMES = frozenset(
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
_RADIOGRAPHS = frozenset(RADIOGRAPH_CLASSES) - {SECONDARY_CAPTURE}
_REPORTS = "1.2.840.10008.5.1.4.1.1.88."  # structured reports, key objects, CAD results, dose reports
_PICTURES_OF_TEXT = {"SCREEN SAVE", "SCREEN_SAVE", "DOSE_INFO", "DOSE INFO", "PATIENT_PROTOCOL"}


@dataclass(slots=True, kw_only=True)
class SourceSeries:
    """Files of one series of one study.

    Attributes:
        ordinal: 1-based, in the order of the paths.
        identity: of the patient: PatientID and issuer; the study where headers name no patient.
        patient_id, issuer: as the headers name them.
        radiographs: SOPInstanceUID by file, of images of CR, DX and MG: each is a case.
    """

    ordinal: int
    series_uid: str
    study_uid: str
    is_image: bool
    identity: str = ""
    patient_id: str = ""
    issuer: str = ""
    files: list[str] = field(default_factory=list)
    radiographs: dict[str, str] = field(default_factory=dict)

    @property
    def study_key(self) -> str:
        """Return a key of the study; a series without a StudyInstanceUID has a key that no other series has."""
        return f"study {self.study_uid}" if self.study_uid else f"series {self.series_uid}"


@dataclass(slots=True, kw_only=True)
class FoundCohort:
    """Series to be de-identified, and the files left out.

    Attributes:
        left_aside: number of files by reason.
        not_dicom: files that are not DICOM; counted in left_aside.
        findings: errors, by the ordinal of the series they are about; 0 for the cohort.
        num_joined: series without an issuer of the PatientID that take the issuer of other series with the same PatientID.
    """

    series: list[SourceSeries] = field(default_factory=list)
    left_aside: Counter[str] = field(default_factory=Counter)
    not_dicom: list[str] = field(default_factory=list)
    findings: list[tuple[int, Finding]] = field(default_factory=list)
    num_joined: int = 0


def find_series(cohort: Path, names: Sequence[str]) -> FoundCohort:
    """Read all headers and group the files to be de-identified by series.

    Args:
        names: paths relative to the cohort, sorted.
    """
    found = FoundCohort()
    unreadable: dict[str, list[int]] = {}
    headers: list[DicomFile] = []
    for number, name in enumerate(names, start=1):
        try:
            file = _read(cohort, name)
        except ValueError as error:
            unreadable.setdefault(str(error), []).append(number)
            continue
        if file is None and is_named_as_dicom(name):
            unreadable.setdefault("no DICOM prefix (DICM) at byte 128", []).append(number)
            continue
        if file is None:
            found.left_aside["not-dicom"] += 1
            found.not_dicom.append(name)
        else:
            headers.append(file)
    identities = _group(found, cohort, headers)
    if unreadable:
        found.left_aside["unreadable"] = sum(map(len, unreadable.values()))
        found.findings += [(0, _unreadable(numbers, len(names), reason)) for reason, numbers in unreadable.items()]
    _name_patients(found, identities)
    return found


def _group(found: FoundCohort, cohort: Path, headers: Sequence[DicomFile]) -> dict[str, set[tuple[str, str]]]:
    """Add the series of files to be de-identified; return PatientID and issuer in the headers by study.

    As in `check`, radiographs are images of the cohort only where it has no volumes.
    """
    images = _VOLUMES if any(file.sop_class in _VOLUMES for file in headers) else _RADIOGRAPHS
    by_uid: dict[tuple[str, str], SourceSeries] = {}  # some writers use one series UID in several studies
    identities: dict[str, set[tuple[str, str]]] = {}
    delivered: list[DicomFile] = []
    for file in headers:
        reason = _not_delivered(file, images)
        if reason:
            found.left_aside[reason] += 1
            continue
        series = by_uid.get((file.study_uid, file.series_uid))
        if series is None:
            series = SourceSeries(
                ordinal=len(by_uid) + 1,
                series_uid=file.series_uid,
                study_uid=file.study_uid,
                is_image=file.sop_class in images,
            )
            by_uid[file.study_uid, file.series_uid] = series
        series.files.append(file.file)
        if images is _RADIOGRAPHS and file.sop_class in images:
            series.radiographs[file.file] = file.sop_instance_uid
        delivered.append(file)
        if file.defect is not None and series.ordinal not in {ordinal for ordinal, _ in found.findings}:
            found.findings.append((series.ordinal, _defective(series.ordinal, file.defect)))
        identities.setdefault(series.study_key, set()).add((file.patient_id, file.issuer))
    found.series = list(by_uid.values())
    _leave_copies_aside(cohort, found, delivered)
    return identities


def _leave_copies_aside(cohort: Path, found: FoundCohort, files: Sequence[DicomFile]) -> None:
    """Remove files that have UID and bytes of an earlier file, and count them."""
    copies = find_same_uids(cohort, files).copies
    for series in found.series:
        series.files = [name for name in series.files if name not in copies]
    if copies:
        found.left_aside["copy"] = len(copies)


def _read(cohort: Path, name: str) -> DicomFile | None:
    try:
        return read_file(cohort, name)
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None  # the file's name may be a person's


def _not_delivered(file: DicomFile, images: Collection[str]) -> str:
    """Return why a file is left out, empty for one that is de-identified. Kinds that cannot be cleaned completely are left out."""
    if file.sop_class.startswith(SECONDARY_CAPTURE) or {word.upper() for word in file.image_type} & _PICTURES_OF_TEXT:
        return "secondary-capture"
    if images is _RADIOGRAPHS and file.sop_class in images and file.modality not in RADIOGRAPHS:
        return "other-object"
    if file.sop_class in images or file.sop_class in MASKS or file.sop_class.startswith(_REPORTS):
        return ""
    return "other-object"


def _name_patients(found: FoundCohort, identities: dict[str, set[tuple[str, str]]]) -> None:
    """Set the patient of each series. A study has one patient; headers without a patient get the one that other headers name."""
    issuers = issuers_by_patient_id(pair for pairs in identities.values() for pair in pairs)
    for series in found.series:
        named = without_absent_issuers(pair for pair in identities[series.study_key] if pair[0])
        if len(named) > 1:
            found.findings.append((series.ordinal, _mixed(series.ordinal)))
        elif not named:
            series.identity = series.study_key
        else:
            ((series.patient_id, issuer),) = named
            joined = joined_issuer(series.patient_id, issuer, issuers)
            if joined is None:
                found.findings.append((series.ordinal, _ambiguous_issuer(series.ordinal)))
                continue
            found.num_joined += joined != issuer
            series.issuer = joined
            series.identity = f"{series.patient_id}\n{series.issuer}"


def _ambiguous_issuer(ordinal: int) -> Finding:
    return refuse(
        "ambiguous-issuer",
        f"series {ordinal}: the headers have a PatientID without issuer, and other series have it with different issuers.",
        seen="no IssuerOfPatientID (0010,0021) in its study",
        expected="IssuerOfPatientID in all studies of that PatientID",
        do="add the issuer, or skip the series with --on-error skip",
    ).finding


def _defective(ordinal: int, defect: HeaderDefect) -> Finding:
    return refuse(
        defect.code,
        f"series {ordinal}: {defect.what}.",
        seen=defect.seen,
        expected=defect.expected,
        do="export the series again from the archive or the scanner, or skip it with --on-error skip",
    ).finding


def _mixed(ordinal: int) -> Finding:
    return refuse(
        "mixed-patients",
        f"series {ordinal}: the study contains headers of different patients, so the patient of the series is ambiguous.",
        seen="more than one PatientID (0010,0020) or issuer (0010,0021) under one StudyInstanceUID",
        expected="the same PatientID and issuer in all files of a study",
        do="separate the files by patient and export them again, or skip the series with --on-error skip",
    ).finding


def _unreadable(numbers: Sequence[int], total: int, reason: str) -> Finding:
    shown = first_of(numbers)
    return refuse(
        "unreadable-file",
        f"{len(numbers)} of {total} files cannot be read as DICOM.",
        seen=f"{reason}: number {shown} of the files sorted by path",
        expected="complete DICOM files with SOPClassUID and SeriesInstanceUID",
        do="copy or export the files again, or skip them with --on-error skip",
    ).finding
