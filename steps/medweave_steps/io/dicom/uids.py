"""Unique identifiers of DICOM images: validity, file meta header, and whether DICOM results can reference the images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_UID = 64
_UID = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*))+", re.ASCII)
_IN_FILE_META = {"SOPClassUID": "MediaStorageSOPClassUID", "SOPInstanceUID": "MediaStorageSOPInstanceUID"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUids:
    """Identifiers of one image file, as its header has them; empty where the header has none."""

    study: str
    series: str
    instance: str
    frame_of_reference: str


def is_valid_uid(uid: str) -> bool:
    """Return True for a UID by DICOM PS3.5, chapter 9: at most 64 characters, numbers without leading zeros."""
    return len(uid) <= LONGEST_UID and _UID.fullmatch(uid) is not None


def fill_from_file_meta(dataset: Any) -> Any:
    """Set an empty SOPClassUID or SOPInstanceUID of a pydicom dataset from its file meta header; return the dataset."""
    for keyword, in_meta in _IN_FILE_META.items():
        value = str(dataset.file_meta.get(in_meta) or "")
        if value and not str(dataset.get(keyword) or "").strip(" \0"):
            setattr(dataset, keyword, value)
    return dataset


def reference_problem(images: Sequence[ImageUids]) -> str:
    """Return why a DICOM SEG or SR cannot reference the images of one series; empty where it can.

    Args:
        images: one for each file of the series.
    """
    for name, uids in (
        ("SOPInstanceUID (0008,0018)", [image.instance for image in images]),
        ("StudyInstanceUID (0020,000D)", [image.study for image in images]),
        ("SeriesInstanceUID (0020,000E)", [image.series for image in images]),
    ):
        problem = _value_problem(name, uids)
        if problem:
            return problem
    frames = [image.frame_of_reference for image in images if image.frame_of_reference]
    repeated = sum(count for count in Counter(image.instance for image in images).values() if count > 1)
    if repeated:
        return f"SOPInstanceUID (0008,0018) is the same in several files, {repeated} of {len(images)}"
    if len({image.study for image in images}) > 1:
        return "StudyInstanceUID (0020,000D) differs between files of the series"
    return _value_problem("FrameOfReferenceUID (0020,0052)", frames)


def _value_problem(name: str, uids: Sequence[str]) -> str:
    empty, invalid = sum(not uid for uid in uids), sum(not is_valid_uid(uid) for uid in uids)
    if empty:
        return f"{name} is empty in {empty} of {len(uids)} files"
    return f"{name} is not a valid UID in {invalid} of {len(uids)} files" if invalid else ""
