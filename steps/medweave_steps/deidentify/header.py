"""The profile applied to one header, in place and with all that is nested in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from typing import Any

from medweave_steps.deidentify import dates
from medweave_steps.deidentify.codes import REMOVED, is_code, is_public, replace_code
from medweave_steps.deidentify.identifiers import Identifiers
from medweave_steps.deidentify.profile import (
    BINARY_KEPT,
    CHARACTERISTICS,
    DESCRIPTORS,
    STRUCTURED,
    Action,
    Option,
    Rule,
    own_rule,
    rules,
    text_kept,
)
from medweave_steps.deidentify.pseudonyms import Pseudonyms, is_standard_uid
from medweave_steps.deidentify.scan_words import scan_words

_NUMBERS = frozenset(["AT", "FD", "FL", "SL", "SS", "SV", "UL", "US", "UV"])
_DECIMALS = frozenset(("DS", "IS"))
_BINARY = frozenset(["OB", "OD", "OF", "OL", "OV", "OW", "UN"])
_FREE_TEXT = frozenset(["LT", "ST", "UC", "UR", "UT"])
_SHORT_TEXT = frozenset(["AE", "AS", "CS", "LO", "SH"])
_CODE_STRING = re.compile(r"[A-Z0-9 _\0]{0,16}")
_DECIMAL_BYTES = re.compile(rb"[0-9+\-.eE \\\0]*")

_PATIENT_NAME, _PATIENT_ID, _PATIENT_AGE, _TRACKING_ID = 0x00100010, 0x00100020, 0x00101010, 0x00620020
_PATIENT_WEIGHT = 0x00101030
_CODING_SCHEME_UID, _PIXEL_DATA = 0x0008010C, 0x7FE00010
_OPTION_OF = {0x0040A730: STRUCTURED, 0x30060026: DESCRIPTORS}  # Content Sequence, ROI Name
_CHARACTER_SET, _BODY_PART = 0x00080005, 0x00180015
# Look-up tables and their descriptors (number of entries, first value, bits of an entry).
_TABLE_DESCRIPTORS = {0x00283006: 0x00283002, **{0x00281200 + color: 0x00281100 + color for color in (1, 2, 3, 4)}}
_IMAGE_KINDS = frozenset(
    (0x00080008, 0x00089007)
)  # Image Type and Frame Type; their first two values are the standard's
_CHARACTER_SETS = re.compile(r"(ISO[ _](2022 )?IR ?\d{1,3}|GB18030|GBK|) *")
_CODE_TEXT = frozenset((0x00080119, 0x00080120))  # Long Code Value and URN Code Value, of public codes
_HIGHEST_AGE = 89  # years; older patients are rare enough to be identified by their age (US HIPAA, 45 CFR 164.514)

_DUMMIES: dict[str, Any] = {
    "AS": "000Y", "DA": "19000101", "DT": "19000101000000", "TM": "000000", "DS": "0", "IS": "0", "UR": "urn:removed",
    **dict.fromkeys(_BINARY, b"\0\0"), **dict.fromkeys(_NUMBERS, 0),
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class HeaderCleaner:
    """The de-identification of the headers of one patient by the profile.

    Attributes:
        pseudonym: new PatientID and PatientName.
        shift_days: added to every date.
        identifiers: words that must not occur in any text; replaced for each file.
        uids: source UID to new UID, filled while headers are cleaned.
        actions: number of changes by kind.
        modality: of the file, for the rules of one modality; replaced for each file.
        options: of the profile that were applied, beyond those that all files have; emptied for each file.
    """

    pseudonyms: Pseudonyms
    pseudonym: str
    shift_days: int
    retain_patient_characteristics: bool
    identifiers: Identifiers = field(default_factory=lambda: Identifiers(()))
    uids: dict[str, str] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)
    modality: str = ""
    options: set[Option] = field(default_factory=set)

    def clean(self, dataset: Any, *, is_item: bool = False) -> None:
        """Clean a pydicom Dataset and all sequences in it; see the module `profile` for the rules.

        Args:
            is_item: `dataset` is an item of a sequence; pixel data in it is removed, since no text search covers it.
        """
        table = rules(self.retain_patient_characteristics)
        if is_code(dataset) and not is_public(dataset):
            replace_code(dataset, self.pseudonyms)
            self.actions["code-replaced"] += 1
        for tag in list(dataset.keys()):
            number = int(tag)
            if self._must_go(dataset, number) or (is_item and self._is_removed_pixel_data(dataset, number)):
                continue
            rule = own_rule(self.modality, number) or table.get(number)
            if rule is None and self._stays_as_it_is(dataset, tag):
                continue
            element = self._element(dataset, tag)
            if element is None:
                continue
            if number in _OPTION_OF:
                self.options.add(_OPTION_OF[number])
            self._apply(dataset, element, rule or _rule_by_type(element.VR, number))

    def uid(self, uid: str) -> str:
        """Return the new UID for a UID of the source; UIDs of DICOM itself stay."""
        uid = uid.strip(" \0")
        if not uid or is_standard_uid(uid):
            return uid
        if uid not in self.uids:
            self.uids[uid] = self.pseudonyms.uid(uid)
        return self.uids[uid]

    def _must_go(self, dataset: Any, number: int) -> bool:
        group = number >> 16
        if group % 2:
            reason = "private-removed"
        elif (
            group < 0x0008 or number & 0xFFFF == 0
        ):  # of a message or a file, not of an object; group lengths: wrong from now on
            reason = "removed"
        elif 0x5000 <= group <= 0x501E or 0x6000 <= group <= 0x601E:
            reason = "overlay-removed"
        else:
            return False
        del dataset[number]
        self.actions[reason] += 1
        return True

    def _is_removed_pixel_data(self, dataset: Any, number: int) -> bool:
        """Remove pixel data and return True; False for any other attribute."""
        if number != _PIXEL_DATA:
            return False
        self._remove(dataset, number, "removed")
        return True

    def _stays_as_it_is(self, dataset: Any, tag: Any) -> bool:
        """Return True for numbers and pixels of attributes that the standard defines; their bytes are not inspected."""
        from pydicom.datadict import dictionary_has_tag, dictionary_VR

        number = int(tag)
        if not dictionary_has_tag(number):
            self._remove(dataset, tag, "unknown-removed")
            return True
        known = dictionary_VR(number)
        raw = dataset.get_item(tag)
        vr = str(raw.VR or known).split(" or ")[0]
        if vr == "UN" and known != "UN":
            return False
        if not _same_kind(vr, known):  # a private tag may have a name where the standard has a number
            self._remove(dataset, tag, "unknown-removed")
            return True
        if number in _TABLE_DESCRIPTORS:
            self._trim_table(dataset, number)
            return True
        if vr in _BINARY:
            if number not in BINARY_KEPT:
                self._remove(dataset, tag, "removed")
            return True
        if vr in _DECIMALS and isinstance(raw.value, bytes):
            if not _DECIMAL_BYTES.fullmatch(raw.value):
                self._remove(dataset, tag, "removed")
            return True
        return vr in _NUMBERS

    def _trim_table(self, dataset: Any, number: int) -> None:
        """Cut a look-up table after the entries that its descriptor counts; remove a table without a usable descriptor."""
        try:
            table = dataset[number]
            num_entries, _, bits = (int(value) for value in dataset[_TABLE_DESCRIPTORS[number]].value)
            num_entries = num_entries or 1 << 16
            if isinstance(table.value, bytes):
                size = num_entries * (2 if bits > 8 or len(table.value) == 2 * num_entries else 1)
                table.value = table.value[:size] + bytes(size % 2)
            else:
                table.value = _entries(table.value)[:num_entries]
        except Exception:  # pydicom raises many kinds; their texts quote values
            self._remove(dataset, number, "unknown-removed")

    def _element(self, dataset: Any, tag: Any) -> Any:
        """Return the element with its value decoded; remove it and return None where it cannot be decoded."""
        try:
            return dataset[tag]
        except Exception:  # pydicom raises many kinds; their texts quote values
            self._remove(dataset, tag, "unknown-removed")
            return None

    def _apply(self, dataset: Any, element: Any, rule: Rule) -> None:
        action = rule.action
        if (action == "date" and not self._move(element)) or (
            action == "scan-words" and not self._keep_scan_words(element)
        ):
            action = rule.otherwise
        if element.VR == "SQ" and action in ("keep", "uid", "date"):
            action = "clean"
        doing: dict[Action, Callable[[], None]] = {
            "remove": lambda: self._remove(dataset, element.tag, "removed"),
            "empty": lambda: self._empty(element),
            "dummy": lambda: self._dummy(element),
            "uid": lambda: self._replace_uids(element),
            "keep": lambda: self._keep(element),
            "clean": lambda: self._clean_items(element),
            "date": lambda: None,
            "scan-words": lambda: None,
        }
        doing[action]()

    def _remove(self, dataset: Any, tag: Any, reason: str) -> None:
        del dataset[tag]
        self.actions[reason] += 1

    def _empty(self, element: Any) -> None:
        if int(element.tag) == _PATIENT_NAME:
            element.value = self.pseudonym
        else:
            element.value = [] if element.VR == "SQ" else None
        self.actions["emptied"] += 1

    def _dummy(self, element: Any) -> None:
        number = int(element.tag)
        if element.VR == "SQ":
            self._dummy_items(element)
        elif element.VR == "UI":
            self._replace_uids(element)
            return
        elif number == _PATIENT_ID:
            element.value = self.pseudonym
        elif number == _TRACKING_ID:  # items with equal tracking are one thing, and stay so
            element.value = f"tracking-{self.pseudonyms.token('tracking', str(element.value), digits=12)}"
        elif not element.is_empty:
            element.value = _DUMMIES.get(element.VR, REMOVED)
        self.actions["replaced"] += 1

    def _dummy_items(self, element: Any) -> None:
        """Replace every text in the items by a dummy value, and every code by a pseudonymous one of medweave's own scheme."""
        for item in element.value:
            if is_code(item):
                replace_code(item, self.pseudonyms)
            self.clean(item, is_item=True)
            for inner in item:
                if inner.VR in _SHORT_TEXT | _FREE_TEXT and not is_code(item) and not inner.is_empty:
                    inner.value = _DUMMIES.get(inner.VR, REMOVED)

    def _replace_uids(self, element: Any) -> None:
        if element.VR != "UI":  # a UID in the wrong form is still one person's
            element.value = None
            self.actions["emptied"] += 1
            return
        values = _values(element)
        keep = int(element.tag) == _CODING_SCHEME_UID
        moved = [uid if keep and _is_registered_scheme(uid) else self.uid(uid) for uid in values]
        if moved != values:
            element.value = moved if len(moved) != 1 else moved[0]
            self.actions["uid-replaced"] += 1

    def _move(self, element: Any) -> bool:
        """Shift a date. Return False if the element holds something else; it is then left unchanged."""
        values = _values(element)
        if element.VR == "TM":
            return all(dates.is_time(value) for value in values if value)
        move = {"DA": dates.shifted_date, "DT": dates.shifted_date_time}.get(element.VR)
        if move is None:
            return False
        moved = [move(value, self.shift_days) if value.strip(" \0") else "" for value in values]
        if None in moved:
            return False
        if moved:
            element.value = moved if len(moved) != 1 else moved[0]
            self.actions["date-shifted"] += 1
        return True

    def _keep_scan_words(self, element: Any) -> bool:
        """Reduce text to words that name the scan. Return False if none is left; the text is then unchanged."""
        words = scan_words(" ".join(_values(element)), self.identifiers)
        if element.VR not in _SHORT_TEXT or not words:
            return False
        element.value = words
        self.actions["text-cleaned"] += 1
        self.options.add(DESCRIPTORS)
        return True

    def _keep(self, element: Any) -> None:
        if int(element.tag) == _PATIENT_WEIGHT and not element.is_empty:
            self.options.add(CHARACTERISTICS)
        if int(element.tag) == _PATIENT_AGE:
            self._keep_age(element)
        elif int(element.tag) == _CHARACTER_SET:
            if not all(_CHARACTER_SETS.fullmatch(value) for value in _values(element)):
                self._empty(element)
        elif element.VR in _BINARY and int(element.tag) not in BINARY_KEPT:  # of unknown form
            self._empty(element)
        elif element.VR in _SHORT_TEXT | _FREE_TEXT:
            self._keep_text(element)

    def _keep_text(self, element: Any) -> None:
        values = _values(element)
        cleaned = [REMOVED if self._identifies(element, place, value) else value for place, value in enumerate(values)]
        if cleaned != values:
            element.value = cleaned if len(cleaned) != 1 else _DUMMIES.get(element.VR, REMOVED)
            self.actions["identifier-replaced"] += 1

    def _identifies(self, element: Any, place: int, value: str) -> bool:
        """Return whether text identifies the patient; invalid code strings count too, because some scanners put words there."""
        number = int(element.tag)
        if number in _IMAGE_KINDS and place < 2:
            return not _CODE_STRING.fullmatch(value)
        if (
            element.VR == "CS"
            and number != _BODY_PART
            and number not in _IMAGE_KINDS
            and not _CODE_STRING.fullmatch(value)
        ):
            return True
        return self.identifiers.in_text(value)

    def _keep_age(self, element: Any) -> None:
        age = re.fullmatch(r"(\d{3})([DWMY])", str(element.value or ""))
        if age is None:
            self._empty(element)
        elif age[2] == "Y" and int(age[1]) > _HIGHEST_AGE:
            element.value = f"{_HIGHEST_AGE + 1:03d}Y"
            self.actions["replaced"] += 1

    def _clean_items(self, element: Any) -> None:
        if element.VR != "SQ":
            self._empty(element)
            return
        for item in element.value:
            self.clean(item, is_item=True)


def _rule_by_type(vr: str, number: int) -> Rule:
    """Return the rule for a standard attribute that the table does not list, by its value representation (VR)."""
    if vr == "SQ":
        return Rule("clean", "clean")
    if vr == "UI":
        return Rule("uid", "uid")
    if vr in ("DA", "DT", "TM", "PN"):  # a date that the table does not name may be one that patients share
        return Rule("empty", "empty")
    if vr in ("AE", "AS", "LO", "SH") and number not in text_kept():
        return Rule("dummy", "dummy")
    if (vr in _FREE_TEXT and number not in _CODE_TEXT) or vr in _BINARY:
        return Rule("remove", "remove")
    return Rule("keep", "keep")


def _same_kind(vr: str, known: str) -> bool:
    kinds = (_NUMBERS, _DECIMALS, _BINARY, _FREE_TEXT | _SHORT_TEXT | {"PN", "UI", "DA", "DT", "TM"}, {"SQ"})
    return any(vr in kind and any(word in kind for word in known.split(" or ")) for kind in kinds) or (
        {vr, *known.split(" or ")} <= _NUMBERS | _BINARY  # pixel paddings and look-up tables: US, SS or OW
    )


def _is_registered_scheme(uid: str) -> bool:
    return uid.startswith("2.16.840.1.113883.6.")  # HL7's register of coding systems


def _entries(value: Any) -> list[Any]:
    return list(value) if isinstance(value, MutableSequence) else [value]


def _values(element: Any) -> list[str]:
    value = element.value
    if value is None or value == "":
        return []
    return [str(item) for item in value] if isinstance(value, MutableSequence) else [str(value)]
