"""All checks of the images of a cohort: each image decoded, and one kind of image in the whole cohort."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.contracts.volume import COLOR_CHANNELS, GRAY_CHANNELS
from medweave_steps.check.cases import Examined
from medweave_steps.io.cohort.discovery import patient_key_of
from medweave_steps.io.cohort.images import ImageFile, read_picture
from medweave_steps.io.cohort.patients import Issuers, issuers_by_patient_id, joined_issuer
from medweave_steps.io.findings import FindingError, first_of, notice, refuse
from medweave_steps.io.image import radiograph, raster
from medweave_steps.io.image.picture import near_pairs, perceptual_hash
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext

_MOST_THREADS = 8
_MOST_PAIRS = 6
_NO_VIEW = "no view"

# What the readers did, for all images of the cohort together: text after the number of images, and what to do.
_NOTES: Mapping[str, tuple[str, str]] = {
    raster.ROTATED: ("turned upright, as their EXIF orientation states", ""),
    raster.GRAY_IN_COLOR: ("stored in color with three equal channels; they are read as gray", ""),
    raster.OPAQUE_ALPHA: ("stored with an alpha channel that is opaque everywhere; it is ignored", ""),
    raster.SIXTEEN_BITS: ("16-bit gray; values from 0 to 65535 become 0 to 1", "check that the images use the full range"),
    radiograph.INVERTED: ("MONOCHROME1; they are inverted, so that dense parts are bright", ""),
    radiograph.NO_WINDOW: (
        "without VOI LUT and window; their own lowest and highest values become 0 and 1",
        "export the images with the window in which they were read",
    ),
    radiograph.DETECTOR_SPACING: (
        "with ImagerPixelSpacing only; sizes in mm are those at the detector, larger than in the patient", "",
    ),
    radiograph.NO_SPACING: ("without PixelSpacing and ImagerPixelSpacing; sizes in mm are not known", ""),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedImages:
    """The result of checking the images of a cohort.

    Attributes:
        hashes: perceptual hash of each usable image by case id, uint8 [36].
        findings: about the cohort.
    """

    examined: tuple[Examined, ...]
    hashes: Mapping[str, npt.NDArray[np.uint8]]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoded:
    result: Examined
    notes: tuple[str, ...] = ()
    hash: npt.NDArray[np.uint8] | None = None


def examine_images(cohort: Path, images: Sequence[ImageFile], context: StepContext) -> ExaminedImages:
    """Decode and check every image.

    Args:
        images: of the cohort, in the order of their paths.
    """
    require("PIL.Image", extra="check").init()  # once, before threads decode
    headers = [image.header for image in images if image.header is not None]
    issuers = issuers_by_patient_id((header.patient_id, header.issuer) for header in headers)
    progress = context.progress(unit="image", total=len(images), is_quick=True)
    decoded = []
    pool = ThreadPoolExecutor(max(1, min(context.num_threads, _MOST_THREADS)), thread_name_prefix="check-image")
    try:
        for one in pool.map(lambda image: _examine(cohort, image, issuers), images):
            decoded.append(one)
            progress.step(one.result.line)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    findings = [*_noted(decoded), *_views(images, decoded)]
    _refuse_other_channels([one.result for one in decoded])
    return ExaminedImages(
        examined=tuple(one.result for one in decoded),
        hashes={one.result.name.case_id: one.hash for one in decoded if one.hash is not None and one.result.entry},
        findings=tuple(findings),
    )


def _examine(cohort: Path, image: ImageFile, issuers: Issuers) -> _Decoded:
    result = Examined(name=image.name)
    try:
        patient = _patient(image, issuers)
        picture = read_picture(cohort, image.file, is_dicom=image.header is not None, name=image.name)
    except FindingError as error:
        result.findings.append(error.finding)
        return _Decoded(result=result)
    result.bytes_read = (cohort / image.file).stat().st_size
    result.entry = CaseEntry(
        case_id=image.name.case_id,
        series_ordinal=image.name.ordinal,
        patient_key=patient_key_of(patient),
        source_format="image" if image.header is None else "dicom",
        files=(image.file,),
        ground_truth=None,
        grid=picture.grid,
        fixed_split=None,
        content_sha256=picture.digest(),
        channels=picture.channels,
    )
    return _Decoded(result=result, notes=picture.notes, hash=perceptual_hash(picture))


def _patient(image: ImageFile, issuers: Issuers) -> str:
    """Return the patient of an image, for the patient key; the file itself where the header names none.

    Raises:
        FindingError: the header has no issuer, and the cohort has several for its PatientID.
    """
    header = image.header
    if header is None or not header.patient_id:
        return f"file {image.file}"
    issuer = joined_issuer(header.patient_id, header.issuer, issuers)
    if issuer is None:
        raise image.name.refuse(
            "ambiguous-issuer",
            "the header has a PatientID without issuer, and other images have the same PatientID with different issuers.",
            seen=f"no IssuerOfPatientID (0010,0021); {len(issuers[header.patient_id])} issuers in other images",
            expected="IssuerOfPatientID in all images of that PatientID",
            do="add the issuer to this image, or skip it with --on-error skip",
        )
    return f"{header.patient_id}\n{issuer}"


def _noted(decoded: Sequence[_Decoded]) -> list[Finding]:
    counts = Counter(note for one in decoded for note in one.notes)
    findings = []
    for code, (what, do) in _NOTES.items():
        if counts[code]:
            images = "1 image is" if counts[code] == 1 else f"{counts[code]} images are"
            findings.append(notice(code, f"{images} {what}.", do=do))
    return findings


def _refuse_other_channels(examined: Sequence[Examined]) -> None:
    """Refuse the images of another kind than most images of the cohort have: color, gray, CR, DX or MG."""
    counts = Counter(one.entry.channels for one in examined if one.entry)
    if len(counts) < 2:
        return
    usual, number = counts.most_common(1)[0]
    for one in examined:
        if one.entry is not None and one.entry.channels != usual:
            one.findings.append(
                one.name.refuse(
                    "mixed-images",
                    f"the image is {_kind(one.entry.channels)}, other images of the cohort are {_kind(usual)}.",
                    seen=_kind(one.entry.channels),
                    expected=f"{_kind(usual)}, as {number} of {sum(counts.values())} images",
                    do="make a cohort of each kind, convert the image, or skip it with --on-error skip",
                ).finding
            )
            one.entry = None


def _kind(channels: tuple[str, ...]) -> str:
    return {COLOR_CHANNELS: "in color (RGB)", GRAY_CHANNELS: "gray (JPEG or PNG)"}.get(
        channels, f"{channels[0]} (DICOM)"
    )


def _views(images: Sequence[ImageFile], decoded: Sequence[_Decoded]) -> list[Finding]:
    """Return an error where mammograms have several views, and a notice where other radiographs have."""
    headers = [
        image.header
        for image, one in zip(images, decoded, strict=True)
        if image.header is not None and one.result.entry
    ]
    counts = Counter(header.view or _NO_VIEW for header in headers)
    if len(counts) < 2:
        return []
    seen = ", ".join(f"{number} x {_shown(view)}" for view, number in counts.most_common(8))
    if all(header.modality != "MG" for header in headers):
        return [notice("several-views", "the radiographs have several views.", seen=seen)]
    return [
        refuse(
            "mixed-views",
            "the mammograms of the cohort have several views.",
            seen=seen,
            expected="one ViewPosition (0018,5101) in all images, such as CC",
            do="make a cohort of each view: a model compares images of one view",
        ).finding
    ]


def _shown(view: str) -> str:
    """Return a view for a message; another text than a short code, such as MLO, may name the patient."""
    return view if view == _NO_VIEW or re.fullmatch("[A-Z]{1,4}", view) else "another view"


def find_near_copies(cases: Sequence[CaseEntry], hashes: Mapping[str, npt.NDArray[np.uint8]]) -> list[Finding]:
    """Return a notice about images of different patients that look the same although their pixels differ.

    Args:
        cases: with their patients, in order of case id.
        hashes: perceptual hashes by case id.
    """
    cases = [case for case in cases if case.case_id in hashes]
    if len(cases) < 2:
        return []
    pairs = [
        (cases[first], cases[second])
        for first, second in near_pairs(np.stack([hashes[case.case_id] for case in cases]))
        if cases[first].patient_key != cases[second].patient_key
    ]
    if not pairs:
        return []
    number = "1 pair" if len(pairs) == 1 else f"{len(pairs)} pairs"
    return [
        notice(
            "near-copies",
            f"{number} of images of different patients may be copies of one image (perceptual hash).",
            seen=first_of([f"{one.case_id} and {other.case_id}" for one, other in pairs], _MOST_PAIRS),
            do="look at the images: copies of one image in two splits make test metrics too good",
        )
    ]
