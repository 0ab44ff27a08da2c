"""Patients of a cohort: a PatientID counts within its issuer, and headers often omit the issuer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Issuers = Mapping[str, frozenset[str]]


def issuers_by_patient_id(patients: Iterable[tuple[str, str]]) -> Issuers:
    """Return every PatientID with the issuers that the cohort's headers name for it.

    Args:
        patients: PatientID and IssuerOfPatientID of each file; empty where the header has none.
    """
    issuers: dict[str, set[str]] = {}
    for patient_id, issuer in patients:
        issuers.setdefault(patient_id, set()).update({issuer} - {""})
    return {patient_id: frozenset(names) for patient_id, names in issuers.items()}


def joined_issuer(patient_id: str, issuer: str, issuers: Issuers) -> str | None:
    """Return the issuer under which a patient counts; None if it is missing and the cohort names several for this PatientID.

    A missing issuer is the one that the cohort names for the same PatientID, so that one person does not count as two patients
    of two splits. Different issuers stay different patients.
    """
    known = issuers.get(patient_id, frozenset())
    if issuer or not known:
        return issuer
    return next(iter(known)) if len(known) == 1 else None


def without_absent_issuers(patients: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the patients that the files of one series or study name; one without an issuer is dropped if another has it."""
    pairs = set(patients)
    with_issuer = {patient_id for patient_id, issuer in pairs if issuer}
    return {(patient_id, issuer) for patient_id, issuer in pairs if issuer or patient_id not in with_issuer}
