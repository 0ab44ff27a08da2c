"""What a folder holds: DICOM series grouped by SeriesInstanceUID, or NIfTI volumes, and what is left aside and why."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from medweave_steps.contracts.cohort import Finding
from medweave_steps.io.dicom_frames import is_slice
from medweave_steps.io.dicom_header import (
    CT_IMAGE,
    ENHANCED_CT,
    SECONDARY_CAPTURE,
    SEGMENTATION,
    DicomFile,
    Plane,
    read_file,
)
from medweave_steps.io.dicom_series import SeriesName
from medweave_steps.io.findings import notice, refuse

_DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")
_IMAGE_MODALITIES = (
    "MR",
    "PT",
    "NM",
    "CR",
    "DX",
    "MG",
    "US",
    "XA",
    "RF",
    "IVUS",
    "OPT",
    "SM",
    "ES",
    "XC",
    "RTIMAGE",
    "CT",
)


def case_id_of_series(series_uid: str) -> str:
    """Case id of a DICOM series: `case-` and 8 hex digits of the SHA-256 of its SeriesInstanceUID."""
    return f"case-{hashlib.sha256(series_uid.encode()).hexdigest()[:8]}"


def case_id_of_path(relative_path: str) -> str:
    """Case id of a NIfTI volume: `case-` and 8 hex digits of the SHA-256 of its path in the cohort."""
    return case_id_of_series(relative_path)


def patient_key_of(identity: str) -> str:
    """Digest that stands for a patient, 16 hex digits."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


@dataclass(slots=True, kw_only=True)
class FoundSeries:
    """The CT images of one SeriesInstanceUID, not yet judged.

    Attributes:
        files: headers in the order of discovery.
        planes: slices of the scan.
        masks: segmentations drawn on it.
    """

    series_uid: str
    name: SeriesName
    files: list[DicomFile] = field(default_factory=list)
    planes: list[Plane] = field(default_factory=list)
    masks: list[DicomFile] = field(default_factory=list)

    @property
    def defective(self) -> list[DicomFile]:
        """Images and segmentations with a defect; pictures that are no slices are left out."""
        slices = [file for file in self.files if not file.planes or any(map(is_scan_plane, file.planes))]
        return [file for file in (*slices, *self.masks) if file.defect is not None]

    @property
    def patients(self) -> set[str]:
        """Identities of the patients that its headers name (one, if all is well); empty strings for none."""
        return {f"{file.patient_id}\n{file.issuer}" if file.patient_id else "" for file in self.files}


@dataclass(slots=True, kw_only=True)
class FoundDicom:
    """The DICOM part of a folder."""

    series: list[FoundSeries] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def walk(folder: Path) -> Iterator[str]:
    """Paths of all files below a folder, relative to it, sorted; hidden ones left out, linked folders followed once."""
    seen: set[str] = set()
    found = []
    for base, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(base)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [os.path.join(base, name) for name in files if not name.startswith(".")]  # noqa: PTH118 (many files)
        found += [os.path.relpath(path, folder) for path in paths if os.path.isfile(path)]  # noqa: PTH113
    yield from sorted(found)


def is_scan_plane(plane: Plane) -> bool:
    """True for a slice of the scan; see `dicom_frames`."""
    return is_slice(plane.frame_type, plane.layout.samples)


def is_reformat(plane: Plane) -> bool:
    """True for a slice computed from others that is not axial (sagittal, coronal): its scan is there as axial slices too."""
    if plane.orientation is None or plane.frame_type[:1] != ("DERIVED",):
        return False
    normal = np.abs(np.cross(plane.orientation[:3], plane.orientation[3:]))
    return int(np.argmax(normal)) != 2


def discover_dicom(folder: Path, names: list[str], *, tick: Callable[[int], None] = lambda number: None) -> FoundDicom:
    """Reads the headers of files and groups the CT images by series.

    Args:
        folder: the cohort.
        names: paths relative to it, in the order of discovery.
        tick: told the number of each file before it is read.
    Returns:
        the series in the order in which their first file was met, and notices about what was left aside.
    """
    found = FoundDicom()
    others: list[DicomFile] = []
    masks: list[DicomFile] = []
    series: dict[str, FoundSeries] = {}
    stray = 0
    unreadable: dict[str, list[int]] = {}
    for number, name in enumerate(names, start=1):
        tick(number)
        try:
            file = read_file(folder, name)
        except ValueError as error:
            unreadable.setdefault(str(error), []).append(number)
            continue
        if file is None:
            if name.lower().endswith(_DICOM_SUFFIXES):
                unreadable.setdefault("no DICOM mark at byte 128", []).append(number)
            else:
                stray += 1
        elif file.sop_class in SEGMENTATION:
            masks.append(file)
        elif _is_ct(file):
            _add(series, file)
        else:
            others.append(file)
    found.findings += [_unreadable(numbers, len(names), reason) for reason, numbers in unreadable.items()]
    found.series = _scans(list(series.values()), found.findings)
    _attach_masks(found, masks)
    _judge_others(found, others, {file.study_uid for s in found.series for file in s.files})
    if stray:
        found.findings.append(notice("other-files", f"{stray} {_files(stray)} not DICOM and left aside."))
    return found


def _is_ct(file: DicomFile) -> bool:
    return (file.sop_class == CT_IMAGE or file.sop_class in ENHANCED_CT) and file.modality in ("CT", "")


def _add(series: dict[str, FoundSeries], file: DicomFile) -> None:
    if file.series_uid not in series:
        name = SeriesName(case_id=case_id_of_series(file.series_uid), ordinal=0)
        series[file.series_uid] = FoundSeries(series_uid=file.series_uid, name=name)
    entry = series[file.series_uid]
    entry.files.append(file)
    entry.planes += [plane for plane in file.planes if is_scan_plane(plane)]


def _scans(candidates: list[FoundSeries], findings: list[Finding]) -> list[FoundSeries]:
    """Numbers the series that hold slices of a scan; a notice for pictures that are none."""
    scans = []
    left_out = 0
    for series in candidates:
        left_out += sum(len(file.planes) for file in series.files) - len(series.planes)
        if series.planes or series.defective:
            scans.append(series)
            series.name = SeriesName(case_id=series.name.case_id, ordinal=len(scans))
    if left_out:
        findings.append(
            notice("localizer", f"{left_out} localizer, projection or colour {_pictures(left_out)} left aside.")
        )
    return scans


def _attach_masks(found: FoundDicom, masks: list[DicomFile]) -> None:
    by_series = {series.series_uid: series for series in found.series}
    by_image = {file.sop_instance_uid: series for series in found.series for file in series.files}
    orphans = 0
    for mask in masks:
        target = next((by_series[uid] for uid in mask.referenced_series if uid in by_series), None)
        target = target or next((by_image[uid] for uid in mask.referenced_images if uid in by_image), None)
        if target is None:
            orphans += 1
        else:
            target.masks.append(mask)
    if orphans:
        found.findings.append(
            notice(
                "orphan-mask",
                f"{orphans} DICOM {'segmentation belongs' if orphans == 1 else 'segmentations belong'} to no CT series of the "
                "cohort: left aside.",
                do="add the series, or remove the segmentation",
            )
        )


def _judge_others(found: FoundDicom, others: list[DicomFile], ct_studies: set[str]) -> None:
    captures = sum(file.sop_class.startswith(SECONDARY_CAPTURE) for file in others)
    if captures:
        found.findings.append(notice("secondary-capture", f"{captures} secondary {_pictures(captures)} left aside."))
    rest = [file for file in others if not file.sop_class.startswith(SECONDARY_CAPTURE)]
    images: dict[str, list[DicomFile]] = {}
    aside = 0
    for file in rest:
        if file.modality in _IMAGE_MODALITIES and file.study_uid not in ct_studies:
            images.setdefault(file.series_uid, []).append(file)
        else:
            aside += 1
    if aside:
        found.findings.append(
            notice(
                "other-objects",
                f"{aside} DICOM {_files(aside)} not CT images (other modalities, reports) and left aside.",
            )
        )
    for uid, files in images.items():
        case_id = case_id_of_series(uid)
        found.findings.append(
            refuse(
                "wrong-modality",
                f"{case_id}: a series of another modality.",
                seen=f"modality {files[0].modality or 'unknown'}, {len(files)} {'file' if len(files) == 1 else 'files'}",
                expected="modality CT (stored as CT Image or Enhanced CT Image)",
                do="remove the series from the cohort, or run check with --on-error skip",
                case_id=case_id,
            ).finding
        )


def _unreadable(numbers: list[int], total: int, reason: str) -> Finding:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return refuse(
        "unreadable-file",
        f"{len(numbers)} of {total} files {'is' if len(numbers) == 1 else 'are'} not readable as DICOM.",
        seen=f"{reason}: number {shown} of the files sorted by path",
        expected="complete DICOM files",
        do="copy or export the files again, or remove them",
    ).finding


def _files(count: int) -> str:
    return "file is" if count == 1 else "files are"


def _pictures(count: int) -> str:
    return "picture is" if count == 1 else "pictures are"
