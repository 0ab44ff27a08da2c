"""Words of a header that identify a person, and their search in all text that the profile retains."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any

# Shorter words occur by chance in text that identifies no person; short ones count only as separate words ("Gina" is not a match
# in "ORIGINAL").
FEWEST_LETTERS = 4
STANDS_ALONE_BELOW = 6

_NUMBERS = (
    "PatientID", "OtherPatientIDs", "AccessionNumber", "StudyID", "PatientBirthDate", "AdmissionID", "RequestedProcedureID",
    "PatientTelephoneNumbers", "MedicalRecordLocator", "PatientAddress", "CountryOfResidence", "InstitutionName",
    "InstitutionAddress", "InstitutionalDepartmentName", "StationName", "DeviceSerialNumber", "IssuerOfPatientID",
    "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID",
)  # fmt: skip


class Identifiers:
    """The words in one file's header that identify people and places."""

    def __init__(self, words: Iterable[str]) -> None:
        folded = {word.casefold() for word in words if len(word) >= FEWEST_LETTERS}
        self._long = tuple(word for word in folded if len(word) >= STANDS_ALONE_BELOW)
        self._short = _pattern(frozenset(word for word in folded if len(word) < STANDS_ALONE_BELOW))

    def in_text(self, text: str) -> bool:
        """Return True where the text holds one of the words, in letters of any case."""
        folded = text.casefold()
        return any(word in folded for word in self._long) or (
            self._short is not None and self._short.search(folded) is not None
        )


@functools.lru_cache(maxsize=64)  # the images of a series have the same short words
def _pattern(words: frozenset[str]) -> re.Pattern[str] | None:
    exact = "|".join(re.escape(word) for word in sorted(words))
    return re.compile(rf"(?<![^\W_])(?:{exact})(?![^\W_])") if words else None


def identifiers_of(dataset: Any) -> Identifiers:
    """Return the words of all names, numbers and places at a header's top level that identify the patient."""
    return Identifiers(_words(dataset))


def _words(dataset: Any) -> Iterator[str]:
    for tag in list(dataset.keys()):
        raw = dataset.get_item(tag)
        if raw.VR == "PN" or (raw.VR is None and _is_name(tag)):
            yield from _parts(_text(dataset, tag), r"[\^=\\\s,;]+")
    for keyword in _NUMBERS:
        if keyword in dataset:
            yield from _parts(_text(dataset, keyword), r"\\")


def _is_name(tag: Any) -> bool:
    from pydicom.datadict import dictionary_has_tag, dictionary_VR

    return bool(dictionary_has_tag(tag)) and str(dictionary_VR(tag)) == "PN"


def _text(dataset: Any, key: Any) -> str:
    try:
        value = dataset[key].value
    except Exception:  # a value that pydicom cannot read gives no word to search for
        return ""
    values = value if isinstance(value, MutableSequence) else [value]  # a person's name can be iterated over, too
    return "\\".join(str(item) for item in values if item is not None)


def _parts(text: str, separators: str) -> Iterator[str]:
    yield from (part.strip() for part in re.split(separators, text))
