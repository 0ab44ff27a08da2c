"""Cleaning of a source header for DICOM results to copy from: the result is valid for any header."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from medweave_steps.io.dicom.frames import Frame, frames_of
from medweave_steps.io.dicom.values import HeaderValues
from medweave_steps.runtime.imports import require

_FUNCTIONAL_GROUPS = (0x52009229, 0x52009230)  # rebuilt by `keep_slices`
_SINGLE_SET = re.compile(r"ISO_IR \d+|GB18030|GBK")
_UTF_8 = "ISO_IR 192"


def drop_unusable(dataset: Any) -> None:
    """Remove values that cannot be decoded or written again, in place and in all nested items.

    A person's name of several values becomes one, since a backslash has no other meaning there.
    """
    for tag in list(dataset.keys()):
        if int(tag) in _FUNCTIONAL_GROUPS:
            continue
        try:
            is_usable = _is_usable(dataset[tag])
        except Exception:  # pydicom raises many kinds for a damaged value
            is_usable = False
        if not is_usable:
            del dataset[tag]


def set_value(dataset: Any, keyword: str, value: Any) -> None:
    """Set an attribute with the VR that the standard gives it, whatever VR the header gave it."""
    dataset.pop(keyword, None)
    setattr(dataset, keyword, value)


def _is_usable(element: Any) -> bool:
    pydicom = require("pydicom", extra="segment")
    if element.keyword and element.VR not in pydicom.datadict.dictionary_VR(element.tag).split(" or "):
        return False
    if element.VR == "SQ":
        for item in element.value:
            drop_unusable(item)
        return True
    values = element.value if isinstance(element.value, pydicom.multival.MultiValue) else [element.value]
    if element.VR == "PN" and len(values) > 1:
        element.value = " ".join(map(str, values))
    if element.VR in ("DS", "IS") and not all(value in (None, "") or math.isfinite(float(value)) for value in values):
        return False
    buffer = pydicom.filebase.DicomBytesIO()
    buffer.is_implicit_VR, buffer.is_little_endian = False, True
    pydicom.filewriter.write_data_element(buffer, element, ["utf8"])
    return True


def make_text_readable(dataset: Any) -> None:
    """Rewrite text as UTF-8 if highdicom does not support its character set, or if it has several."""
    character_set = dataset.get("SpecificCharacterSet")
    known = {item.value for item in require("highdicom.enum", extra="segment").SpecificCharacterSetValues}
    if character_set is None or (_SINGLE_SET.fullmatch(str(character_set)) and str(character_set) in known):
        return
    dataset.decode()
    dataset.SpecificCharacterSet = _UTF_8


def keep_slices(image: Any, numbers: Sequence[int]) -> None:
    """Reduce a multi-frame header to some frames, with orientation and pixel measures in the shared functional groups.

    Args:
        image: header of an object that `check` accepted, changed in place.
        numbers: 0-based frames to keep, ascending.
    """
    pydicom = require("pydicom", extra="segment")
    frames = frames_of(HeaderValues(image))
    first = frames[numbers[0]]
    shared = pydicom.Dataset()
    shared.PlaneOrientationSequence = [_item(first, "PlaneOrientationSequence", "ImageOrientationPatient")]
    shared.PixelMeasuresSequence = [_item(first, "PixelMeasuresSequence", "PixelSpacing", "SliceThickness")]
    groups = []
    for number in numbers:
        group = pydicom.Dataset()
        group.PlanePositionSequence = [_item(frames[number], "PlanePositionSequence", "ImagePositionPatient")]
        groups.append(group)
    image.SharedFunctionalGroupsSequence, image.PerFrameFunctionalGroupsSequence = [shared], groups
    image.NumberOfFrames = len(groups)


def _item(frame: Frame, sequence: str, *keywords: str) -> Any:
    """Return a sequence item with attributes of a frame as the header has them, digit by digit."""
    item = require("pydicom", extra="segment").Dataset()
    for keyword in keywords:
        holder = frame.holder(keyword, sequence)
        if keyword in holder and frame.values.value(keyword, holder) is not None:
            item.add(holder[keyword])
    return item
