"""One DICOM series: every file is read, checked, cleaned and written under its new name."""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from medweave_core.contracts.cohort import Finding
from medweave_steps import __version__
from medweave_steps.deidentify.burned_in import TextSearch
from medweave_steps.deidentify.deface import Defacer, MaskOfFrame, has_only_slices, not_defaced
from medweave_steps.deidentify.faces import IDENTIFIABLE, DeclaredFaces, FaceState, face_in_image, worst
from medweave_steps.deidentify.header import HeaderCleaner
from medweave_steps.deidentify.identifiers import identifiers_of
from medweave_steps.deidentify.pixels import UnreadablePixelsError, planes_of, strip_pixel_data
from medweave_steps.deidentify.profile import BASIC, CHARACTERISTICS, FACES, MODIFIED_DATES, Option
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.io.dicom.header import SEGMENTATION, load_pydicom
from medweave_steps.io.dicom.rtstruct_header import STRUCTURE_SET
from medweave_steps.io.dicom.uids import fill_from_file_meta
from medweave_steps.io.dicom.values import has_other_cause
from medweave_steps.io.findings import FindingError, refuse
from medweave_steps.runtime.imports import require

IMPLICIT, EXPLICIT = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesJob:
    """The de-identification of one series.

    Attributes:
        ordinal: 1-based place in the cohort, for messages.
        files: paths relative to the cohort.
        identity: of the patient, for pseudonym and date shift.
        output: folder of the de-identified cohort.
        faces: whether images show faces, as the user or the cohort card declares.
        masks: brain masks of the patient.
        mask_by_series: the mask that applies to each image series of the patient, by its UID; None where none does.
        refuse_faces: refuse images that may show a face.
        is_radiograph: images of CR, DX or MG.
    """

    cohort: Path
    ordinal: int
    study_uid: str
    series_uid: str
    files: tuple[str, ...]
    identity: str
    output: Path
    key: bytes
    retain_patient_characteristics: bool
    faces: DeclaredFaces
    masks: tuple[MaskOfFrame, ...]
    mask_by_series: Mapping[str, MaskOfFrame | None]
    refuse_faces: bool
    is_radiograph: bool = False


@dataclass(slots=True, kw_only=True)
class SeriesDone:
    """The result for one series; with a finding no file was written.

    Attributes:
        series_uid: the new one.
        files: source path to new path, both relative.
        face: the worst of its images.
        resampled: a brain mask of another grid was applied.
        num_unstated: radiographs without a statement about burned-in text.
        num_left_aside: localizers and projections of a head, to which no brain mask applies.
    """

    ordinal: int
    series_uid: str
    pseudonym: str
    is_image: bool = False
    options: set[Option] = field(default_factory=set)
    face: FaceState = "absent"
    resampled: bool = False
    num_unstated: int = 0
    num_left_aside: int = 0
    uids: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)
    finding: Finding | None = None


def options_of(applied: Iterable[Option], *, retain_patient_characteristics: bool) -> list[Option]:
    """Return codes and meanings of the profile and its options: those of all files, and those that were applied."""
    always = {BASIC, MODIFIED_DATES} | ({CHARACTERISTICS} if retain_patient_characteristics else set())
    return sorted(always | set(applied))


def deidentify_series(job: SeriesJob) -> SeriesDone:
    """Write one series; an error in it is returned as a finding, and its files are removed.

    Raises:
        OSError: reading or writing failed; it names no file, since a file's name may be a person's.
    """
    pseudonyms = Pseudonyms(job.key)
    pseudonym = pseudonyms.patient(job.identity)
    cleaner = HeaderCleaner(
        pseudonyms=pseudonyms,
        pseudonym=pseudonym,
        shift_days=pseudonyms.date_shift_days(job.identity),
        retain_patient_characteristics=job.retain_patient_characteristics,
    )
    done = SeriesDone(ordinal=job.ordinal, series_uid=cleaner.uid(job.series_uid), pseudonym=pseudonym)
    below = Path(pseudonym) / f"series-{pseudonyms.token('series', f'{job.study_uid} {job.series_uid}', digits=12)}"
    folder = job.output / below
    search, defacer = TextSearch(), Defacer(job.masks, job.ordinal, job.mask_by_series)
    states: list[FaceState] = []
    try:
        folder.mkdir(parents=True)
        for name in job.files:
            new = _new_file(read_private(job.cohort / name), job, cleaner, search, defacer)
            if new is None:
                done.num_left_aside += 1
                continue
            states += [new.face] if new.face else []
            path = below / f"{pseudonyms.token('instance', new.instance_uid, digits=16)}.dcm"
            _refuse_twice(job, new.instance_uid, (job.output / path).exists())
            (job.output / path).write_bytes(new.content)
            done.is_image |= new.is_image
            done.num_unstated += new.is_unstated
            done.options |= cleaner.options
            done.files[name] = path.as_posix()
        if search.finish():
            raise _text_in_pixels(job.ordinal)
        defacer.finish()
        done.face, done.resampled = worst(states), defacer.resampled
        if job.refuse_faces and done.face in IDENTIFIABLE:
            raise not_defaced(job.ordinal)
    except FindingError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return SeriesDone(ordinal=job.ordinal, series_uid=done.series_uid, pseudonym=pseudonym, finding=error.finding)
    if not done.files:
        folder.rmdir()
    done.uids, done.actions = cleaner.uids, cleaner.actions
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewFile:
    instance_uid: str
    face: FaceState | None
    is_unstated: bool
    content: bytes

    @property
    def is_image(self) -> bool:
        return self.face is not None


def _new_file(
    content: bytes, job: SeriesJob, cleaner: HeaderCleaner, search: TextSearch, defacer: Defacer
) -> _NewFile | None:
    """Examine and clean one file of the series, in memory; return None for a picture of a head that no mask applies to.

    Raises:
        FindingError: the file is refused, or a value in it cannot be read: pydicom decodes values when they are first used.
    """
    try:
        dataset, syntax = _parse(content, job.ordinal)
        _check(dataset, job)
        cleaner.identifiers = identifiers_of(dataset)
        cleaner.actions["pixel-data-trimmed"] += _strip_pixels(dataset, syntax, job.ordinal)
        face: FaceState | None = None
        is_unstated = job.is_radiograph and not _burned_in(dataset)
        if _look_at_pixels(dataset, syntax, search, job):
            face = face_in_image(dataset, job.faces)
            if job.masks and face != "absent" and not has_only_slices(dataset):
                return None
            new_syntax = defacer.deface(dataset, syntax, face)
            if new_syntax is not None:
                syntax, face = new_syntax, "removed"
                cleaner.actions["face-removed"] += 1
        elif str(dataset.get("SOPClassUID", "")) in SEGMENTATION:
            defacer.check_segments(dataset)
        elif str(dataset.get("SOPClassUID", "")) == STRUCTURE_SET:
            defacer.check_contours(dataset)
        instance_uid = str(dataset.get("SOPInstanceUID") or "").strip()
        cleaner.options = {FACES} if face == "removed" else set()
        cleaner.modality = str(dataset.get("Modality") or "").strip()
        content = _cleaned(dataset, syntax, cleaner)
        return _NewFile(instance_uid=instance_uid, face=face, is_unstated=is_unstated, content=content)
    except Exception as error:  # pydicom raises many kinds for damaged files; their texts may quote values
        if has_other_cause(error):
            raise
        raise _unreadable(job.ordinal) from error


def read_private(path: Path) -> bytes:
    """Return a file's bytes; an error that names no file, since its name may be a person's."""
    with _open_private(path) as stream:
        return stream.read()


def _open_private(path: Path) -> BinaryIO:
    """Open a file by number, so that no message of a library can quote the path."""
    try:
        return os.fdopen(os.open(path, os.O_RDONLY), "rb")
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None


def read_header(path: Path, ordinal: int) -> Any:
    """Return the header of a file of a series as a pydicom Dataset; its pixels are not read.

    Raises:
        FindingError: it cannot be read.
    """
    with _open_private(path) as stream:
        try:
            return load_pydicom().dcmread(stream, force=True, stop_before_pixels=True)
        except Exception as error:  # pydicom raises many kinds for damaged files; their texts may quote values
            if has_other_cause(error):
                raise
            raise _unreadable(ordinal) from error


def _parse(content: bytes, ordinal: int) -> tuple[Any, str]:
    """Return the dataset and its transfer syntax."""
    dataset = load_pydicom().dcmread(io.BytesIO(content), force=True)
    implicit, little = dataset.original_encoding
    fill_from_file_meta(dataset)
    syntax = str(dataset.file_meta.get("TransferSyntaxUID", ""))
    if not syntax:
        if not little:
            raise _unreadable(ordinal)
        syntax = IMPLICIT if implicit else EXPLICIT
    return dataset, syntax


def _check(dataset: Any, job: SeriesJob) -> None:
    """Refuse a file whose header says that text is burned into its pixels, or whose pixels contain an overlay."""
    if _burned_in(dataset) == "YES":
        raise refuse(
            "burned-in-annotation",
            f"series {job.ordinal}: the header declares burned-in text.",
            seen="BurnedInAnnotation (0028,0301) YES",
            expected="images without text in their pixels",
            do="remove the series from the cohort, blank the text, or skip the series with --on-error skip",
        )
    for group in range(0x6000, 0x6020, 2):
        if dataset.get((group, 0x0102)) is not None and (group, 0x3000) not in dataset:
            raise refuse(
                "overlay-in-pixels",
                f"series {job.ordinal}: an overlay is stored in unused bits of the pixel data, which deidentify does not change.",
                seen="an overlay plane (60xx) without OverlayData",
                expected="overlays stored separately from the pixel data",
                do="remove the overlay, export it separately, or skip the series with --on-error skip",
            )


def _burned_in(dataset: Any) -> str:
    """Return what the header says about burned-in text, YES or NO; empty where it says nothing."""
    stated = str(dataset.get("BurnedInAnnotation") or "").strip().upper()
    return stated if stated in ("YES", "NO") else ""


def _strip_pixels(dataset: Any, syntax: str, ordinal: int) -> bool:
    """Remove comments and trailing bytes from the pixel data; return True if there were any."""
    try:
        return "PixelData" in dataset and strip_pixel_data(dataset, syntax)
    except UnreadablePixelsError as error:
        raise _pixels_not_checked(ordinal, error) from error


def _look_at_pixels(dataset: Any, syntax: str, search: TextSearch, job: SeriesJob) -> bool:
    """Return whether an object is an image; a segmentation, whose pixels a person or program drew, is not."""
    if "PixelData" not in dataset or str(dataset.get("SOPClassUID", "")) in SEGMENTATION:
        return False
    words = dataset.get("ImageType") or ()
    kind = str(words if isinstance(words, str) else "\\".join(map(str, words)))
    try:
        for plane in planes_of(dataset, syntax):
            search.add(plane, kind, is_radiograph=job.is_radiograph)
    except UnreadablePixelsError as error:
        raise _pixels_not_checked(job.ordinal, error) from error
    if search.found:
        raise _text_in_pixels(job.ordinal)
    return True


def _pixels_not_checked(ordinal: int, error: UnreadablePixelsError) -> FindingError:
    return refuse(
        "pixels-not-checked",
        f"series {ordinal}: the pixel data cannot be read, so burned-in text cannot be excluded.",
        seen=str(error),
        expected="complete pixel data in a supported transfer syntax",
        do="export the series again, convert it to Explicit VR Little Endian, or skip it with --on-error skip",
    )


def _text_in_pixels(ordinal: int) -> FindingError:
    return refuse(
        "text-in-pixels",
        f"series {ordinal}: the pixels appear to contain burned-in text.",
        seen="a row of small flat shapes of similar height",
        expected="images without text in their pixels",
        do="review the series: blank the text, remove the series from the cohort, or skip it with --on-error skip",
    )


def _refuse_twice(job: SeriesJob, instance: str, exists: bool) -> None:
    if exists or not instance:
        raise refuse(
            "same-instance-twice" if instance else "no-instance-uid",
            f"series {job.ordinal}: {'two files have the same SOPInstanceUID' if instance else 'a file has no SOPInstanceUID'}.",
            seen="the same SOPInstanceUID (0008,0018) twice" if instance else "an empty SOPInstanceUID (0008,0018)",
            expected="one file per SOPInstanceUID",
            do="remove the copies" if instance else "export the series again",
        )


def _unreadable(ordinal: int) -> FindingError:
    return refuse(
        "unreadable-file",
        f"series {ordinal}: a file cannot be read or written as DICOM.",
        seen="a truncated file, or a file that violates the DICOM standard",
        expected="complete DICOM files",
        do="copy or export the series again, or skip it with --on-error skip",
    )


def _cleaned(dataset: Any, syntax: str, cleaner: HeaderCleaner) -> bytes:
    """Return the whole new file; the caller writes it, since pydicom hides the reason of a full disk."""
    cleaner.clean(dataset)
    _mark(dataset, cleaner)
    _new_meta(dataset, syntax)
    buffer = io.BytesIO()
    require("pydicom", extra="deidentify").dcmwrite(buffer, dataset, enforce_file_format=True)
    return buffer.getvalue()


def _mark(dataset: Any, cleaner: HeaderCleaner) -> None:
    """Record the de-identification in the header (DICOM PS3.15, E.1.1 and E.3.2)."""
    pydicom = require("pydicom", extra="deidentify")
    dataset.PatientID = dataset.PatientName = cleaner.pseudonym
    dataset.PatientIdentityRemoved = "YES"
    dataset.DeidentificationMethod = [f"medweave {__version__}", "DICOM PS3.15 2026c Table E.1-1"]
    dataset.LongitudinalTemporalInformationModified = "MODIFIED"
    items = []
    for value, meaning in options_of(
        cleaner.options, retain_patient_characteristics=cleaner.retain_patient_characteristics
    ):
        item = pydicom.Dataset()
        item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, "DCM", meaning
        items.append(item)
    dataset.DeidentificationMethodCodeSequence = items
    if "PixelData" in dataset:
        dataset.BurnedInAnnotation = "NO"


def _new_meta(dataset: Any, syntax: str) -> None:
    """Return a new file meta header: the source's names applications and may hold private information."""
    pydicom = require("pydicom", extra="deidentify")
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
    meta.TransferSyntaxUID = syntax
    dataset.file_meta, dataset.preamble = meta, bytes(128)


def remove_empty_folders(output: Path) -> None:
    """Remove the empty folders of patients without any remaining file."""
    for folder in output.iterdir():
        if folder.is_dir() and not os.listdir(folder):  # noqa: PTH208 (a name is not needed)
            folder.rmdir()
