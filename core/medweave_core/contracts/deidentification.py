"""The summary of `deidentify`, which may leave the source, and its re-identification map, which must not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from medweave_core.contracts.volume import DataClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deidentification:
    """`results` of the run report of `deidentify`. It contains no header values and no file names.

    Attributes:
        profile: the rules that were applied, with their edition.
        options: active options of the profile, with the names of DICOM PS3.16, CID 7050.
        num_patients, num_cases, num_files: numbers written; a case is one series of images, one radiograph or photograph, or one
            NIfTI volume with all its channels.
        num_uids: different UIDs that were replaced.
        actions: number of attributes by action: `removed`, `emptied`, `replaced`, `uid-replaced`,
            `date-shifted`, `private-removed`, `unknown-removed`, `overlay-removed`, `code-replaced`, `identifier-replaced`,
            `pixel-data-trimmed` (files whose PixelData had comments or bytes behind the pixels), `face-removed` (images whose
            voxels outside of a brain mask are air), `text-cleaned` (text reduced to words that name the contrast),
            `metadata-removed` (photographs that had metadata), `turned-upright` (photographs with an EXIF orientation).
        left_aside: files of the cohort that were not written, by reason.
        left_out: cases that were left out for an error (`--on-error skip`), by the code of the error.
    """

    profile: str
    options: tuple[str, ...]
    num_patients: int
    num_cases: int
    num_files: int
    num_uids: int
    actions: Mapping[str, int]
    left_aside: Mapping[str, int]
    left_out: Mapping[str, int]
    data_class: DataClass = "aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientAtHome:
    """One patient, as the source names them and as the de-identified cohort does.

    Attributes:
        patient_id: PatientID of the source, or the patient that a table of images names; empty if nothing names one, and for NIfTI
            files.
        issuer: IssuerOfPatientID of the source.
        pseudonym: PatientID and PatientName of the de-identified cohort.
        date_shift_days: was added to every date; days, negative (into the past); 0 for photographs, which have no dates.
    """

    patient_id: str
    issuer: str
    pseudonym: str
    date_shift_days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidentificationMap:
    """`way_back.json`: the re-identification map, from pseudonyms to patients. It stays at the source, as the key does.

    Attributes:
        uids: UID of the source to UID of the de-identified cohort.
        files: path in the source to path in the de-identified cohort, both relative.
    """

    patients: tuple[PatientAtHome, ...]
    uids: Mapping[str, str]
    files: Mapping[str, str]
    data_class: DataClass = "identified"
