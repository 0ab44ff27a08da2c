"""One photograph: its pixels are examined, and written into a file without metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.cohort import Finding
from medweave_steps.deidentify.burned_in import text_in_photograph
from medweave_steps.deidentify.code_streams import CodeStreamError
from medweave_steps.deidentify.dicom_case import read_private
from medweave_steps.deidentify.faces import IDENTIFIABLE, FaceState
from medweave_steps.deidentify.images.containers import is_png, png_of, strip_file
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.image.picture import ImageError, Picture
from medweave_steps.io.image.raster import ROTATED, read_raster


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotographJob:
    """The de-identification of one JPEG or PNG file.

    Attributes:
        source: path in the cohort.
        target: path in the output, without suffix.
        refuse_faces: refuse a photograph that may show a face.
    """

    cohort: Path
    output: Path
    name: SeriesName
    source: str
    target: str
    face: FaceState
    refuse_faces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotographDone:
    """The result for one photograph; with a finding no file was written.

    Attributes:
        file: path in the output.
        is_turned: written upright as PNG, because its EXIF orientation turned it.
        has_lost_bytes: metadata or bytes after the end were removed.
    """

    name: SeriesName
    source: str
    file: str = ""
    is_turned: bool = False
    has_lost_bytes: bool = False
    finding: Finding | None = None


def deidentify_photograph(job: PhotographJob) -> PhotographDone:
    """Write one photograph; `check` decodes the same pixels from it.

    Raises:
        OSError: reading or writing failed; it names no file, since a file's name may be a person's.
    """
    try:
        return _write(job)
    except FindingError as error:
        return PhotographDone(name=job.name, source=job.source, finding=error.finding)


def _write(job: PhotographJob) -> PhotographDone:
    if job.refuse_faces and job.face in IDENTIFIABLE:
        raise _may_show_a_face(job.name)
    picture = _read(job.cohort / job.source, job.name)
    if text_in_photograph(picture.pixels_CRI):
        raise _text_in_pixels(job.name)
    content = read_private(job.cohort / job.source)
    is_turned = ROTATED in picture.notes
    try:
        stripped = png_of(picture) if is_turned else strip_file(content)
    except CodeStreamError as error:
        raise _unreadable(job.name, str(error)) from error
    file = f"{job.target}{'.png' if is_png(stripped) else '.jpg'}"
    (job.output / file).write_bytes(stripped)
    if _read(job.output / file, job.name).digest() != picture.digest():
        (job.output / file).unlink()
        raise _unreadable(job.name, "colors that depend on metadata")
    return PhotographDone(
        name=job.name, source=job.source, file=file, is_turned=is_turned, has_lost_bytes=stripped != content
    )


def _read(path: Path, name: SeriesName) -> Picture:
    try:
        return read_raster(path)
    except ImageError as error:
        raise error.named(name) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None


def _text_in_pixels(name: SeriesName) -> FindingError:
    return name.refuse(
        "text-in-pixels",
        "the pixels appear to contain burned-in text.",
        seen="a row of small flat shapes of similar height",
        expected="images without text in their pixels",
        do="look at the image: blank or crop the text, remove the image, or skip it with --on-error skip",
    )


def _may_show_a_face(name: SeriesName) -> FindingError:
    return name.refuse(
        "face",
        "the photograph may show a face, a tattoo or another mark by which the patient can be recognized.",
        seen="a JPEG or PNG file without a declaration",
        expected="images without such marks, because this run must write de-identified data",
        do="look at every image; if none shows such a mark, declare --faces absent",
    )


def _unreadable(name: SeriesName, seen: str) -> FindingError:
    return name.refuse(
        "unreadable-file",
        "the image file cannot be written without its metadata.",
        seen=seen,
        expected="a complete JPEG or PNG file in RGB or gray",
        do="convert the image to PNG, or skip it with --on-error skip",
    )
