"""The content of a folder: DICOM series grouped by SeriesInstanceUID, or NIfTI volumes, and the files left out with reasons."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.volume import Modality
from medweave_steps.io.cohort.modalities import files_are, images_are, judge_others, modality_of_file, select_files
from medweave_steps.io.cohort.patients import Issuers, issuers_by_patient_id, without_absent_issuers
from medweave_steps.io.dicom.duplicates import find_same_uids
from medweave_steps.io.dicom.frames import has_colors, is_slice
from medweave_steps.io.dicom.header import MASKS, DicomFile, Plane, is_named_as_dicom, read_file
from medweave_steps.io.dicom.uids import ImageUids
from medweave_steps.io.findings import SeriesName, first_of, notice, refuse


def case_id_of_series(series_uid: str) -> str:
    """Return the case id of a DICOM series: `case-` and 8 hex digits of the SHA-256 of its SeriesInstanceUID."""
    return f"case-{hashlib.sha256(_encoded(series_uid)).hexdigest()[:8]}"


def case_id_of_path(relative_path: str) -> str:
    """Return the case id of a NIfTI volume: `case-` and 8 hex digits of the SHA-256 of its path in the cohort."""
    return case_id_of_series(relative_path)


def patient_key_of(identity: str) -> str:
    """Return the digest that identifies a patient, 16 hex digits."""
    return hashlib.sha256(_encoded(identity)).hexdigest()[:16]


def _encoded(text: str) -> bytes:
    """Return text as UTF-8; bytes of a file name that are not UTF-8 stay as they are on the disk."""
    return text.encode("utf-8", "surrogateescape")


@dataclass(slots=True, kw_only=True)
class FoundSeries:
    """The images of one SeriesInstanceUID, not yet checked.

    Attributes:
        files: headers in the order of discovery.
        planes: slices of the scan.
        masks: segmentations and structure sets drawn on it.
        issuers: issuers of each PatientID in the whole cohort.
    """

    series_uid: str
    name: SeriesName
    files: list[DicomFile] = field(default_factory=list)
    planes: list[Plane] = field(default_factory=list)
    masks: list[DicomFile] = field(default_factory=list)
    issuers: Issuers = field(default_factory=dict)

    @property
    def uids(self) -> list[ImageUids]:
        """Return the identifiers of each file that holds slices of the scan."""
        frames = {plane.file: plane.frame_of_reference for plane in self.planes}
        return [
            ImageUids(
                study=file.study_uid,
                series=file.series_uid,
                instance=file.sop_instance_uid,
                frame_of_reference=frames[file.file],
            )
            for file in self.files
            if file.file in frames
        ]

    @property
    def defective(self) -> list[DicomFile]:
        """Images and segmentations with a defect; images that are not slices are left out."""
        slices = [file for file in self.files if not file.planes or any(map(is_scan_plane, file.planes))]
        return [file for file in (*slices, *self.masks) if file.defect is not None]

    @property
    def patients(self) -> set[tuple[str, str]]:
        """Return PatientID and issuer of the patients that its headers name: one in a correct series; empty if none."""
        return without_absent_issuers((file.patient_id, file.issuer if file.patient_id else "") for file in self.files)

    @property
    def modality(self) -> Modality:
        """Modality of the images."""
        return modality_of_file(self.files[0]) or "CT"

    @property
    def study_uid(self) -> str:
        """StudyInstanceUID of the first file; the SeriesInstanceUID where it has none."""
        return self.files[0].study_uid or self.series_uid

    @property
    def body_part(self) -> str | None:
        """Scanned body part as stated by the headers; None if they state none or several."""
        parts = {file.body_part for file in self.files if file.body_part}
        return next(iter(parts)) if len(parts) == 1 else None


@dataclass(slots=True, kw_only=True)
class FoundDicom:
    """The DICOM part of a folder."""

    series: list[FoundSeries] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def walk(folder: Path) -> Iterator[str]:
    """Yield the sorted relative paths of all files below a folder; hidden files are skipped, linked folders are followed once."""
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
    """Return True for a slice of the scan; see `dicom_frames`."""
    return is_slice(plane.frame_type, plane.layout.samples, plane.layout.photometric)


def _is_color_plane(plane: Plane) -> bool:
    return has_colors(plane.layout.samples, plane.layout.photometric)


def is_reformat(plane: Plane) -> bool:
    """Return True for a slice computed from others that is not axial (sagittal, coronal): its scan is there as axial slices too."""
    if plane.orientation is None or plane.frame_type[:1] != ("DERIVED",):
        return False
    normal = np.abs(np.cross(plane.orientation[:3], plane.orientation[3:]))
    return int(np.argmax(normal)) != 2


def discover_dicom(
    folder: Path,
    names: list[str],
    *,
    modality: Modality | None = None,
    tick: Callable[[int], None] = lambda number: None,
) -> FoundDicom:
    """Read the headers of files and group the images by series.

    Args:
        folder: the cohort.
        names: paths relative to it, in the order of discovery.
        modality: of the images to read; None for CT where there are CT images, else for MR and PET.
        tick: called with the number of each file before it is read.
    Returns:
        the series in the order of their first files, and notices about files that were left out.
    """
    found = FoundDicom()
    others: list[DicomFile] = []
    files: list[DicomFile] = []
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
            if is_named_as_dicom(name):
                unreadable.setdefault("no DICOM prefix (DICM) at byte 128", []).append(number)
            else:
                stray += 1
        elif file.sop_class in MASKS or modality_of_file(file) == "CT":
            files.append(file)
        else:
            others.append(file)
    files, others, wanted = select_files(files, others, modality)
    found.findings += [_unreadable(numbers, len(names), reason) for reason, numbers in unreadable.items()]
    files = _without_same_uids(folder, files, names, found.findings)
    series: dict[str, FoundSeries] = {}
    for file in files:
        if file.sop_class not in MASKS:
            _add(series, file)
    found.series = _scans(list(series.values()), wanted, found.findings)
    issuers = issuers_by_patient_id((file.patient_id, file.issuer) for s in found.series for file in s.files)
    for entry in found.series:
        entry.issuers = issuers
    found.findings += _notice_shared_instances(found.series)
    _attach_masks(found, [file for file in files if file.sop_class in MASKS], wanted)
    studies = {file.study_uid for s in found.series for file in s.files}
    found.findings += judge_others(others, wanted, studies, case_id_of=case_id_of_series)
    if stray:
        found.findings.append(notice("other-files", f"{stray} {files_are(stray)} not DICOM and ignored."))
    return found


def _without_same_uids(
    folder: Path, files: list[DicomFile], names: list[str], findings: list[Finding]
) -> list[DicomFile]:
    """Return the files without copies, which a notice counts, and without series in which one UID has two contents."""
    same = find_same_uids(folder, files)
    if same.copies:
        count = len(same.copies)
        findings.append(
            notice(
                "copies",
                f"{count} DICOM {'file is a copy' if count == 1 else 'files are copies'} of another file and ignored.",
                seen="the same SOPInstanceUID and the same bytes",
                do="remove the copies to save space",
            )
        )
    conflicts: dict[str, list[int]] = {}
    numbers = {name: number for number, name in enumerate(names, start=1)}
    for file in files:
        if file.file in same.conflicts:
            conflicts.setdefault(file.series_uid, []).append(numbers[file.file])
    findings += [_conflict(uid, places) for uid, places in conflicts.items()]
    return [file for file in files if file.file not in same.copies and file.series_uid not in conflicts]


def _conflict(series_uid: str, numbers: list[int]) -> Finding:
    case_id = case_id_of_series(series_uid)
    shown = first_of(numbers)
    return refuse(
        "same-uid",
        f"{case_id}: two files have the same SOPInstanceUID but different contents.",
        seen=f"number {shown} of the files sorted by path",
        expected="one content per SOPInstanceUID",
        do="keep the original file and remove the others",
        case_id=case_id,
    ).finding


def _add(series: dict[str, FoundSeries], file: DicomFile) -> None:
    if file.series_uid not in series:
        name = SeriesName(case_id=case_id_of_series(file.series_uid), ordinal=0)
        series[file.series_uid] = FoundSeries(series_uid=file.series_uid, name=name)
    entry = series[file.series_uid]
    entry.files.append(file)
    entry.planes += [plane for plane in file.planes if is_scan_plane(plane)]


def _scans(candidates: list[FoundSeries], wanted: tuple[Modality, ...], findings: list[Finding]) -> list[FoundSeries]:
    """Number the series that hold slices of a scan; return a notice for other pictures."""
    scans = []
    left_out = colors = 0
    for series in candidates:
        colors_here = sum(_is_color_plane(plane) for file in series.files for plane in file.planes)
        colors += colors_here
        left_out += sum(len(file.planes) for file in series.files) - len(series.planes) - colors_here
        if series.planes or series.defective:
            scans.append(series)
            series.name = SeriesName(case_id=series.name.case_id, ordinal=len(scans))
    if left_out:
        findings.append(notice("localizer", f"{left_out} localizer or projection {images_are(left_out)} ignored."))
    if colors:
        findings.append(
            notice(
                "color-pictures",
                f"{colors} {' or '.join(wanted)} {images_are(colors)} in color (RGB or PALETTE COLOR): ignored, since colors "
                f"are not {'HU' if wanted == ('CT',) else 'measured values'}.",
                do="export the original images of the scan (MONOCHROME2, with RescaleSlope and RescaleIntercept)",
            )
        )
    return scans


def _owners(all_series: list[FoundSeries]) -> dict[str, list[FoundSeries]]:
    """Return each SOPInstanceUID with the series that hold a file of that name."""
    owners: dict[str, list[FoundSeries]] = {}
    for series in all_series:
        for uid in {file.sop_instance_uid for file in series.files} - {""}:
            owners.setdefault(uid, []).append(series)
    return owners


def _notice_shared_instances(all_series: list[FoundSeries]) -> list[Finding]:
    """Return a notice where one SOPInstanceUID names images of several series: references to it are ambiguous."""
    shared = [owners for owners in _owners(all_series).values() if len(owners) > 1]
    if not shared:
        return []
    names = sorted({str(series.name) for owners in shared for series in owners})
    return [
        notice(
            "shared-instance-uid",
            f"{len(shared)} SOPInstanceUIDs (0008,0018) occur in several series; references to them are ambiguous.",
            seen=first_of(names, 6),
            do="assign a unique SOPInstanceUID to each image, or keep one of the series",
        )
    ]


def _attach_masks(found: FoundDicom, masks: list[DicomFile], wanted: tuple[Modality, ...]) -> None:
    by_series = {series.series_uid: series for series in found.series}
    by_image = {uid: owners[0] for uid, owners in _owners(found.series).items() if len(owners) == 1}
    orphans = 0
    ambiguous: set[str] = set()
    for mask in masks:
        targets = {uid: by_series[uid] for uid in mask.referenced_series if uid in by_series}
        if len(targets) > 1:
            ambiguous |= targets.keys()
            continue
        target = next(iter(targets.values()), None)
        target = target or next((by_image[uid] for uid in mask.referenced_images if uid in by_image), None)
        if target is None:
            orphans += 1
        else:
            target.masks.append(mask)
    found.findings += [_several_series(series.name) for series in found.series if series.series_uid in ambiguous]
    found.series = [series for series in found.series if series.series_uid not in ambiguous]
    if orphans:
        found.findings.append(
            notice(
                "orphan-mask",
                f"{orphans} DICOM {'mask (SEG or RTSTRUCT) references' if orphans == 1 else 'masks (SEG or RTSTRUCT) reference'} "
                f"no {' or '.join(wanted)} series of the cohort and {'was' if orphans == 1 else 'were'} ignored.",
                do="add the series, or remove the file",
            )
        )


def _several_series(name: SeriesName) -> Finding:
    return name.refuse(
        "ambiguous-mask",
        "a DICOM mask (SEG or RTSTRUCT) references this series and another series of the cohort.",
        seen="more than one SeriesInstanceUID under ReferencedSeriesSequence or RTReferencedSeriesSequence",
        expected="a mask that references only the series it was drawn on",
        do="export the mask again for one series, or remove it",
    ).finding


def _unreadable(numbers: list[int], total: int, reason: str) -> Finding:
    shown = first_of(numbers)
    return refuse(
        "unreadable-file",
        f"{len(numbers)} of {total} files {'is' if len(numbers) == 1 else 'are'} not readable as DICOM.",
        seen=f"{reason}: number {shown} of the files sorted by path",
        expected="complete DICOM files with SOPClassUID and SeriesInstanceUID",
        do="copy or export the files again, or remove them",
    ).finding
