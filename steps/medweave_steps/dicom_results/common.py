"""Common parts of our DICOM objects: patient, UIDs and dates. Nothing depends on the time of the run."""

from __future__ import annotations

import contextlib
import logging
import re
import unicodedata
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import CodedTerm, Label, upper_first
from medweave_core.contracts.volume import VolumeInfo
from medweave_core.errors import UserInputError
from medweave_steps.dicom_results.source_header import drop_unusable, keep_slices, make_text_readable, set_value
from medweave_steps.io.dicom.frames import is_multi_frame as has_frames
from medweave_steps.io.dicom.series import SIDEWAYS_TOLERANCE
from medweave_steps.io.dicom.source_headers import frame_order, slice_position_lps
from medweave_steps.io.dicom.values import HeaderValues
from medweave_steps.runtime.imports import require

CONTENT_DESCRIPTION = "Research use only. Not a medical device."  # LO: at most 64 characters
MANUFACTURER = "medweave"
_RESEARCH = " (research use only)"

# Attributes of type 2 that highdicom copies from the source: they must be there, and may be empty.
_TYPE_2 = (
    "PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate", "StudyTime",
    "ReferringPhysicianName",
)  # fmt: skip
_DATES = ("ContentDate", "SeriesDate", "StudyDate", "AcquisitionDate", "InstanceCreationDate")
_TIMES = ("ContentTime", "SeriesTime", "StudyTime", "AcquisitionTime", "InstanceCreationTime")
_SEXES = ("M", "F", "O")
_SOME_DATE, _SOME_TIME = "19000101", "000000"
_SAME_MM = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeries:
    """The images that a result was computed from.

    Attributes:
        images: header-only datasets, patient attributes made sound: one per slice, sorted, or one multi-frame image.
        frames: 0-based frame of the multi-frame image per slice; empty for single-frame images.
        date, time: the source's own, DICOM DA and TM, for `ContentDate` and `ContentTime`.
    """

    images: tuple[Any, ...]
    frames: tuple[int, ...]
    date: str
    time: str

    @property
    def series_uid(self) -> str:
        """SeriesInstanceUID of the images; never leaves DICOM outputs."""
        return str(self.images[0].SeriesInstanceUID)

    def instance_numbers(self, num_slices: int) -> list[int | None]:
        """Return InstanceNumber of the image that shows each slice."""
        images = [self.images[0]] * num_slices if self.frames else self.images
        return [HeaderValues(image).integer("InstanceNumber") for image in images]

    def references(self, first_slice: int, last_slice: int) -> list[tuple[Any, list[int] | None]]:
        """Return the images of source slices (counted from 1), each with its frames (from 1; None for single-frame images)."""
        slices = range(first_slice - 1, last_slice)
        if self.frames:
            return [(self.images[0], sorted(self.frames[s] + 1 for s in slices))]
        return [(self.images[s], None) for s in slices]


def read_source(headers: Sequence[Any], info: VolumeInfo) -> SourceSeries | None:
    """Prepare the source headers of a case for reference.

    Args:
        headers: datasets without pixel data, changed in place.
        info: the case.
    Returns:
        None where a DICOM SEG cannot name the images: a series of several multi-frame images.
    Raises:
        UserInputError: the headers are not those of the volume's slices.
    """
    order = frame_order(headers)
    num_slices = info.source_grid.shape[0]
    if len(order) != num_slices:
        raise _foreign(info, f"{len(order)} slices", f"{num_slices} slices")
    for index in (0, num_slices - 1):
        _check_place(_position_mm(headers, order[index]), info, index)
    is_multi_frame = any(map(has_frames, headers))
    if is_multi_frame and len(headers) > 1:
        return None
    first = headers[0]
    drop_unusable(first)
    make_text_readable(first)
    if is_multi_frame:
        keep_slices(first, sorted(frame for _, frame in order))
    for image in headers:
        _make_patient_sound(image)
        _make_geometry_sound(image, first, info)
    return _source_of(headers, tuple(frame for _, frame in order) if is_multi_frame else ())


def read_whole_source(headers: Sequence[Any]) -> SourceSeries:
    """Prepare source headers for results about whole images, whose position and frames do not matter.

    Args:
        headers: datasets without pixel data, changed in place.
    """
    drop_unusable(headers[0])
    make_text_readable(headers[0])
    for image in headers:
        _make_patient_sound(image)
    return _source_of(headers, ())


def _source_of(headers: Sequence[Any], frames: tuple[int, ...]) -> SourceSeries:
    values = HeaderValues(headers[0])
    date = next((d for d in (_date(values.text(k)) for k in _DATES) if d), _SOME_DATE)
    time = next((t for t in (_time(values.text(k)) for k in _TIMES) if t), _SOME_TIME)
    return SourceSeries(images=tuple(headers), frames=frames, date=date, time=time)


def derived_uid(*parts: str) -> str:
    """Return a UID that depends on nothing but its parts, so that equal work gives equal files (DICOM PS3.5, B.2: UUID-derived)."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, chr(10).join(('medweave', *parts))).int}"


def dicom_text(text: str, limit: int = 64) -> str:
    """Return a text that every DICOM character set can hold: printable ASCII, at most `limit` characters."""
    plain = unicodedata.normalize("NFKD", text)
    plain = "".join(c for c in plain if not unicodedata.combining(c)).encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() and c != "\\" else "?" for c in plain)[:limit].strip()


def research_text(title: str) -> str:
    """Return a series description (LO) that begins with a title and states the purpose of the object."""
    return f"{dicom_text(upper_first(title), 64 - len(_RESEARCH))}{_RESEARCH}"


def content_label(labels: Sequence[Label]) -> str:
    """Return the content label (CS, at most 16 characters) of a segmentation, such as LUNG_NODULES."""
    text = labels[0].titles if len(labels) == 1 else ""
    return re.sub("[^A-Z0-9]+", "_", dicom_text(text).upper()).strip("_")[:16].strip("_") or "SEGMENTATION"


def concept(term: CodedTerm) -> Any:
    """Return a coded term of the card as highdicom takes it."""
    return require("highdicom.sr", extra="segment").CodedConcept(term.value, term.scheme, term.meaning)


def settle_times(dataset: Any, source: SourceSeries) -> None:
    """Replace the time of the run by the source's date and time, without a time zone."""
    dataset.ContentDate, dataset.ContentTime = source.date, source.time
    for keyword in ("InstanceCreationDate", "InstanceCreationTime", "TimezoneOffsetFromUTC"):
        if keyword in dataset:
            del dataset[keyword]
    for item in dataset.get("ContributingEquipmentSequence") or []:
        # highdicom's entry about itself; those of the source keep their time.
        if "highdicom" in str(item.get("ManufacturerModelName")):
            item.pop("ContributionDateTime", None)


@contextlib.contextmanager
def values_as_they_are() -> Iterator[None]:
    """Accept patient and study attributes as the source has them, too long or not, so that archives match them.

    They are not logged either: the warnings of pydicom and highdicom quote values, and logs must not hold patient data.
    """
    validation = require("pydicom.config", extra="segment").disable_value_validation()
    loggers = [logging.getLogger(name) for name in ("pydicom", "highdicom")]
    levels = [logger.level for logger in loggers]
    with validation, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _position_mm(headers: Sequence[Any], place: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return ImagePositionPatient of a frame, LPS, mm."""
    return np.asarray(slice_position_lps(headers[place[0]], place[1]), dtype=np.float64)


def _slice_position_mm(info: VolumeInfo, index: int) -> npt.NDArray[np.float64]:
    """Return the position of the first pixel of a source slice, LPS, mm."""
    ras = np.asarray(info.source_grid.affine) @ [index, 0, 0, 1]
    place: npt.NDArray[np.float64] = ras[:3] * [-1, -1, 1]
    return place


def _check_place(position_mm: npt.NDArray[np.float64], info: VolumeInfo, index: int) -> None:
    """Refuse a header whose slice does not lie at its place in the volume; sideways, `check` accepts part of a pixel."""
    spacing_mm = info.source_grid.spacing_mm
    normal = np.asarray(info.source_grid.affine)[:3, 0] / spacing_mm[0] * [-1, -1, 1]
    apart = position_mm - _slice_position_mm(info, index)
    along_mm = abs(float(apart @ normal))
    sideways_mm = float(np.linalg.norm(apart - (apart @ normal) * normal))
    if along_mm > _SAME_MM or sideways_mm > _SAME_MM + SIDEWAYS_TOLERANCE * min(spacing_mm[1:]):
        off_mm = float(np.linalg.norm(apart))
        raise _foreign(
            info, f"slice {index + 1} is {off_mm:.2f} mm from its position", f"within {_SAME_MM} mm of its position"
        )


def _foreign(info: VolumeInfo, seen: str, expected: str) -> UserInputError:
    return UserInputError(
        f"the source headers of {info.case_id} do not match its volume.",
        seen=f"{seen} (source_headers.zip)",
        expected=f"{expected} (volume_info.json)",
        do="run preprocess again",
    )


def _make_patient_sound(image: Any) -> None:
    values = HeaderValues(image)
    for keyword in _TYPE_2:
        if keyword not in image or values.value(keyword) is None:
            set_value(image, keyword, None)
    # highdicom refuses what real archives hold; an empty value of type 2 says "not known".
    if values.text("PatientSex") not in (*_SEXES, ""):
        set_value(image, "PatientSex", "")
    set_value(image, "PatientBirthDate", _date(values.text("PatientBirthDate")))
    set_value(image, "StudyDate", _date(values.text("StudyDate")) or None)
    set_value(image, "StudyTime", _time(values.text("StudyTime")) or None)


def _make_geometry_sound(image: Any, first: Any, info: VolumeInfo) -> None:
    # highdicom wants one orientation to the last digit and a slice thickness, and takes the distance between slices as it is
    # written; archives hold rounding errors, empty thicknesses and wrong distances.
    spacing_mm = round(info.source_grid.spacing_mm[0], 6)
    if has_frames(image):
        measures = image.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
    else:
        set_value(image, "ImageOrientationPatient", first.ImageOrientationPatient)
        measures = image
    if not (HeaderValues(measures).number("SliceThickness") or 0) > 0:
        set_value(measures, "SliceThickness", spacing_mm)
    set_value(measures, "SpacingBetweenSlices", spacing_mm)
    if not HeaderValues(image).text("FrameOfReferenceUID"):
        set_value(image, "FrameOfReferenceUID", derived_uid("frame of reference", str(image.SeriesInstanceUID)))


def _date(text: str) -> str:
    with contextlib.suppress(ValueError):
        if re.fullmatch(r"\d{8}", text):
            require("pydicom", extra="segment").valuerep.DA(text)
            return text
    return ""


def _time(text: str) -> str:
    with contextlib.suppress(ValueError):
        if re.fullmatch(r"\d{2}(\d{2}(\d{2}(\.\d{1,6})?)?)?", text):
            require("pydicom", extra="segment").valuerep.TM(text)
            return text
    return ""
