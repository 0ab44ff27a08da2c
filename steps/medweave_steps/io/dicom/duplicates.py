"""DICOM files that carry the same SOPInstanceUID: copies of one image, or a conflict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_steps.io.dicom.header import DicomFile
from medweave_steps.io.hashing import sha256_of_file


@dataclass(frozen=True, slots=True, kw_only=True)
class SameUid:
    """Files that share SOPInstanceUIDs.

    Attributes:
        copies: files with the bytes of an earlier file of the same UID.
        conflicts: CT images with UID and place of another file of their series, but other bytes.
    """

    copies: frozenset[str]
    conflicts: frozenset[str]


def find_same_uids(folder: Path, files: Sequence[DicomFile]) -> SameUid:
    """Compare the bytes of all files of a series that share a SOPInstanceUID; files without a UID are not compared.

    Different slices under one UID are no conflict: their contents are certain, only references to them are not.

    Args:
        folder: the cohort.
        files: headers in the order of the paths.
    """
    by_uid: dict[tuple[str, str], list[DicomFile]] = {}
    for file in files:
        if file.sop_instance_uid:
            by_uid.setdefault((file.series_uid, file.sop_instance_uid), []).append(file)
    copies: set[str] = set()
    conflicts: set[str] = set()
    for group in by_uid.values():
        if len(group) < 2:
            continue
        contents: dict[str, DicomFile] = {}
        copies |= {
            file.file for file in group if contents.setdefault(sha256_of_file(folder / file.file), file) is not file
        }
        images = [file for file in contents.values() if file.planes]
        places = Counter(map(_place, images))
        conflicts |= {file.file for file in images if places[_place(file)] > 1}
    return SameUid(copies=frozenset(copies), conflicts=frozenset(conflicts))


def _place(file: DicomFile) -> tuple[tuple[float, ...] | None, ...]:
    return tuple(plane.position_lps for plane in file.planes)
