"""Coded entries (DICOM PS3.3, 8.8): those of public coding schemes stay, those that a hospital made up are replaced."""

from __future__ import annotations

from typing import Any

from medweave_steps.deidentify.pseudonyms import Pseudonyms

REMOVED = "REMOVED"
OWN_SCHEME = "99MEDWEAVE"

# Coding schemes that are published for everybody (DICOM PS3.16, Table 8-1, those that images, SEG and SR use).
PUBLIC_SCHEMES = frozenset(
    (
        "DCM", "SCT", "SRT", "SNM3", "SNM2", "UCUM", "LN", "RADLEX", "RADELEMENT", "UMLS", "FMA", "NCIt", "NCIT",
        "I10", "I10P", "I9C", "ICD10", "ICD9", "BARI", "C4", "C5", "CD2", "IBSI", "ISO639_1", "ISO639_2", "ISO3166_1",
        "IETF4646", "RFC3066", "RFC5646", "MSH", "NEU", "ITIS_TSN", "MA", "PUBCHEM_CID", "UNS", "ACR", "MAYOASRG", "NYUMCCG",
    )
)  # fmt: skip

_VALUES = ("CodeValue", "LongCodeValue", "URNCodeValue")
_NAMED_ELSEWHERE = (
    "CodingSchemeVersion", "CodingSchemeName", "CodingSchemeUID", "CodingSchemeResponsibleOrganization", "CodingSchemeRegistry",
    "CodingSchemeExternalID", "CodingSchemeResourcesSequence", "EquivalentCodeSequence",
)  # fmt: skip


def is_code(dataset: Any) -> bool:
    """Return True for an item that holds one coded entry."""
    return "CodeMeaning" in dataset or any(keyword in dataset for keyword in _VALUES)


def is_public(dataset: Any) -> bool:
    """Return True where the code's scheme is published; a code that names its scheme by a URN is not."""
    return str(dataset.get("CodingSchemeDesignator", "")).strip() in PUBLIC_SCHEMES


def replace_code(dataset: Any, pseudonyms: Pseudonyms) -> None:
    """Replace a code of a local scheme by a pseudonymous one; equal codes stay equal, different codes stay different."""
    value = next((str(dataset.get(keyword)) for keyword in _VALUES if dataset.get(keyword)), "")
    scheme = str(dataset.get("CodingSchemeDesignator", ""))
    for keyword in (*_VALUES, *_NAMED_ELSEWHERE):
        if keyword in dataset:
            delattr(dataset, keyword)
    dataset.CodeValue = pseudonyms.token("code", f"{scheme}\0{value}", digits=12)
    dataset.CodingSchemeDesignator = OWN_SCHEME
    dataset.CodeMeaning = REMOVED
