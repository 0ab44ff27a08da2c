"""Folders of 2-D images: photographs (JPEG, PNG) or radiographs (DICOM CR, DX, MG); each file is a case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.contracts.volume import are_images
from medweave_steps.io.cohort.discovery import case_id_of_path, case_id_of_series
from medweave_steps.io.cohort.modalities import files_are
from medweave_steps.io.cohort.tables import is_table
from medweave_steps.io.dicom.header import is_named_as_dicom
from medweave_steps.io.findings import SeriesName, first_of, notice, refuse
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.image.picture import ImageError, Picture
from medweave_steps.io.image.radiograph import RadiographHeader, read_radiograph, read_radiograph_header
from medweave_steps.io.image.raster import is_raster, read_raster

_VOLUMES = ("CT", "MR", "PT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """One image of a cohort, before it is decoded.

    Attributes:
        header: of a radiograph; None for a photograph.
    """

    name: SeriesName
    file: str
    header: RadiographHeader | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundImages:
    """The images of a folder in the order of their paths, and findings about the other files."""

    images: tuple[ImageFile, ...]
    findings: tuple[Finding, ...]


def find_images(cohort: Path, names: Sequence[str], *, has_public_names: bool) -> FoundImages | None:
    """Return the images of a folder; None for a folder without images, or with volumes of CT, MR or PET.

    Args:
        names: files of the cohort that may be images, sorted; without NIfTI.
        has_public_names: name photographs after their files; else file names may identify patients, and cases are named after a
            digest.
    """
    photographs = [name for name in names if is_raster(name)]
    radiographs: list[RadiographHeader] = []
    unreadable: list[int] = []
    others = 0
    for number, name in enumerate(names, start=1):
        if is_raster(name) or is_table(name):
            continue
        try:
            header = read_radiograph_header(cohort, name)
        except ValueError:
            unreadable.append(number)
            continue
        if header is not None and header.modality in _VOLUMES:
            return None
        if header is not None and header.is_radiograph:
            radiographs.append(header)
        elif header is None and is_named_as_dicom(name):
            unreadable.append(number)
        else:
            others += 1
    if not photographs and not radiographs:
        return None
    usable, findings = _without_same_uids(cohort, radiographs)
    if others:
        what = f"{others} {files_are(others)} neither images nor tables and ignored."
        findings.append(notice("other-files", what))
    if unreadable:
        findings.append(_unreadable(unreadable, len(names)))
    headers: dict[str, RadiographHeader] = {header.file: header for header in usable}
    ids = case_ids_of_photographs(photographs, has_public_names=has_public_names)
    ids |= {file: case_id_of_series(header.instance_uid or file) for file, header in headers.items()}
    images = tuple(
        ImageFile(
            name=SeriesName(case_id=ids[file], ordinal=ordinal, noun="image"), file=file, header=headers.get(file)
        )
        for ordinal, file in enumerate(sorted(ids), start=1)
    )
    return FoundImages(images=images, findings=tuple(findings))


def case_ids_of_photographs(photographs: Sequence[str], *, has_public_names: bool) -> dict[str, str]:
    """Return the case id of each file; see `find_images`."""
    stems = {name: PurePosixPath(name).stem for name in photographs}
    counts = Counter(stems.values())
    return {
        name: stem
        if has_public_names and counts[stem] == 1 and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", stem)
        else case_id_of_path(name)
        for name, stem in stems.items()
    }


def _without_same_uids(
    cohort: Path, headers: Sequence[RadiographHeader]
) -> tuple[list[RadiographHeader], list[Finding]]:
    """Return the radiographs without copies of files, and without those in which one UID has two contents."""
    by_uid: dict[str, list[RadiographHeader]] = {}
    for header in headers:
        by_uid.setdefault(header.instance_uid or header.file, []).append(header)
    usable, findings, copies = [], [], 0
    for uid, same in by_uid.items():
        if len(same) > 1 and len({sha256_of_file(cohort / header.file) for header in same}) > 1:
            case_id = case_id_of_series(uid)
            findings.append(
                refuse(
                    "same-uid",
                    f"{case_id}: two files have the same SOPInstanceUID but different contents.",
                    seen=f"{len(same)} files",
                    expected="one content per SOPInstanceUID",
                    do="keep the original file and remove the others",
                    case_id=case_id,
                ).finding
            )
            continue
        copies += len(same) - 1
        usable.append(same[0])
    if copies:
        what = f"{copies} DICOM {'file is a copy' if copies == 1 else 'files are copies'} of another file and ignored."
        findings.append(notice("copies", what, seen="the same SOPInstanceUID and the same bytes"))
    return usable, findings


def _unreadable(numbers: Sequence[int], total: int) -> Finding:
    return refuse(
        "unreadable-file",
        f"{len(numbers)} of {total} files {'is' if len(numbers) == 1 else 'are'} not readable as DICOM.",
        seen=f"number {first_of(numbers)} of the files sorted by path",
        expected="complete DICOM files",
        do="copy or export the files again, or remove them",
    ).finding


def read_picture(cohort: Path, file: str, *, is_dicom: bool, name: SeriesName) -> Picture:
    """Decode one image of a cohort.

    Raises:
        FindingError: it cannot be used; names the case.
    """
    try:
        return read_radiograph(cohort / file) if is_dicom else read_raster(cohort / file)
    except FileNotFoundError as error:
        raise name.changed("the file of the case is missing") from error
    except ImageError as error:
        raise error.named(name) from error


def open_image(cohort: Path, entry: CaseEntry) -> Picture:
    """Decode the image of a case and compare it with what `check` saw.

    Raises:
        FindingError: it is another image, or cannot be used; names the case.
    """
    assert are_images(entry.channels)
    name = SeriesName(case_id=entry.case_id, ordinal=entry.series_ordinal, noun="image")
    picture = read_picture(cohort, entry.files[0], is_dicom=entry.source_format == "dicom", name=name)
    if picture.digest() != entry.content_sha256:
        raise name.changed("different pixels under the same file name")
    return picture
