"""One DICOM file: its kind, the positions of its planes in the patient, and of their pixels in the file."""

from __future__ import annotations

import functools
import logging
import os
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from medweave_core.contracts.body_parts import PARTS_BY_CODE, known_body_part
from medweave_steps.io.dicom.fast_header import quick_header
from medweave_steps.io.dicom.frames import FrameCountError, frames_of
from medweave_steps.io.dicom.image_classes import CT_IMAGE, ENHANCED_CT, modality_of_class
from medweave_steps.io.dicom.planes import (
    ACQUISITION_ATTRIBUTES,
    DEFLATED,
    EXPLICIT_BIG_ENDIAN,
    MR_ATTRIBUTES,
    NATIVE,
    PLANE_ATTRIBUTES,
    HeaderDefect,
    PixelLayout,
    Plane,
    frames_disagree,
    read_planes,
    with_stored_values,
)
from medweave_steps.io.dicom.rtstruct_header import STRUCTURE_SET, described_rois, referenced_objects
from medweave_steps.io.dicom.uids import fill_from_file_meta
from medweave_steps.io.dicom.values import HeaderValues, has_other_cause
from medweave_steps.runtime.imports import require

__all__ = [
    "CT_IMAGE", "DEFLATED", "DIRECTORY", "ENHANCED_CT", "EXPLICIT_BIG_ENDIAN", "MASKS", "NATIVE", "SECONDARY_CAPTURE",
    "SEGMENTATION", "DicomFile", "HeaderDefect", "PixelLayout", "Plane", "load_pydicom", "looks_like_dicom", "read_file",
]  # fmt: skip

SEGMENTATION = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
MASKS = (*SEGMENTATION, STRUCTURE_SET)
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
DIRECTORY = "1.2.840.10008.1.3.10"

_UNDEFINED_LENGTH = 0xFFFFFFFF
_TAGS = [
    *PLANE_ATTRIBUTES, "SpecificCharacterSet", "SOPClassUID", "SOPInstanceUID", "Modality", "PatientID", "IssuerOfPatientID",
    "StudyInstanceUID", "SeriesInstanceUID", "ReferencedSeriesSequence", "SegmentSequence", "SegmentationType",
    "BodyPartExamined", "AnatomicRegionSequence", "StructureSetROISequence", "ROIContourSequence",
    "ReferencedFrameOfReferenceSequence",
]  # fmt: skip


class UnnamedFileError(ValueError):
    """A complete header without an identifier that grouping needs; the text names the attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomFile:
    """The attributes of one file that grouping needs.

    Attributes:
        planes: its planes, for images of CT, MR and PET; empty for anything else.
        defect: why its pixels cannot be used; None if they can, or if it has no pixels.
        referenced_series: series that a segmentation or structure set was drawn on.
        referenced_images: source images that a segmentation or structure set names.
        segments: number and label of each segment of a segmentation; number and name of each ROI with contours of a structure set.
        body_part: scanned body part by the header, as a defined term of BodyPartExamined; None if it is not known.
    """

    file: str
    sop_class: str
    modality: str
    image_type: tuple[str, ...]
    sop_instance_uid: str
    series_uid: str
    study_uid: str
    patient_id: str
    issuer: str
    planes: tuple[Plane, ...] = ()
    defect: HeaderDefect | None = None
    referenced_series: tuple[str, ...] = ()
    referenced_images: tuple[str, ...] = ()
    segments: tuple[tuple[int, str], ...] = ()
    body_part: str | None = None


def load_pydicom() -> Any:
    """Return pydicom with warnings disabled: they quote values, which may be names or UIDs."""
    pydicom = require("pydicom", extra="dicom")
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"pydicom\b")
    return pydicom


def is_named_as_dicom(name: str) -> bool:
    """Return whether a file is named as a DICOM file; many DICOM files have no suffix."""
    return name.lower().endswith((".dcm", ".dicom", ".ima"))


def looks_like_dicom(stream: BinaryIO) -> bool:
    """Return True for a Part 10 file, and for one without preamble that begins with group 0008."""
    head = stream.read(132)
    stream.seek(0)
    return head[128:132] == b"DICM" or head[:2] == b"\x08\x00"


def read_file(folder: Path, name: str) -> DicomFile | None:
    """Read one file's header, without its pixels.

    Args:
        folder: the cohort.
        name: path relative to it.
    Returns:
        None where the file is not DICOM.
    Raises:
        UnnamedFileError: its header lacks an identifier without which the file belongs to nothing.
        ValueError: it is DICOM but its header cannot be read (cut off, or not to the standard).
    """
    path = folder / name
    # Opened by number, so that no message of a library can quote the path.
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as stream:
        if not looks_like_dicom(stream):
            return None
        file_bytes = path.stat().st_size
        quick = _read_quickly(stream.fileno(), name, file_bytes)
        if quick is not None:
            return quick
        pydicom = load_pydicom()
        try:
            dataset = pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=_TAGS, force=True)
            meta = dataset.file_meta
            if str(meta.get("MediaStorageSOPClassUID", "")) == DIRECTORY:
                return None
            syntax = str(meta.get("TransferSyntaxUID", "1.2.840.10008.1.2"))
            fill_from_file_meta(dataset)
            _check_named(dataset)
            location = _locate_pixels(stream, syntax, file_bytes)
            return _describe(HeaderValues(dataset), name, syntax, location, file_bytes)
        except UnnamedFileError:
            raise
        except Exception as error:  # pydicom raises many kinds for a damaged header; their texts may quote values
            if has_other_cause(error):
                raise
            raise ValueError("the header is truncated or violates the DICOM standard") from error


def _check_named(dataset: Any) -> None:
    """Raise UnnamedFileError for a file without SOPClassUID or SeriesInstanceUID."""
    for keyword, tag in (("SOPClassUID", "(0008,0016)"), ("SeriesInstanceUID", "(0020,000E)")):
        if not str(dataset.get(keyword) or "").strip(" \0"):
            if keyword not in dataset and "Rows" not in dataset:  # neither its identity nor its image
                raise ValueError("the header ends before the attributes that identify the file")
            raise UnnamedFileError(f"{keyword} {tag} is empty or missing")


def _read_quickly(descriptor: int, name: str, file_bytes: int) -> DicomFile | None:
    """Return the header of a plain single-frame image, read without pydicom; None for any other file."""
    header = quick_header(descriptor)
    if header is None or header.get("SOPClassUID") != CT_IMAGE:
        return None
    if not header.get("SeriesInstanceUID") or not header.get("SOPInstanceUID"):
        return None  # empty, or in the file meta header
    location = (header.pixel_offset, header.pixel_bytes)
    values = HeaderValues(header)
    file = _describe(values, name, header.meta["TransferSyntaxUID"], location, file_bytes)
    return None if values.unusable or file.defect else file


def _locate_pixels(stream: BinaryIO, syntax: str, file_bytes: int) -> tuple[int, int | None] | None:
    """Return byte offset and length of the pixel data's value; the stream is where pydicom stopped, before that element."""
    if syntax == DEFLATED:
        return (-1, None)
    here = stream.tell()
    if here > file_bytes:  # an element before the pixels promises more bytes than there are
        return (file_bytes, here - file_bytes)
    big = syntax == EXPLICIT_BIG_ENDIAN
    head = stream.read(12)
    if len(head) < 8 or struct.unpack(">HH" if big else "<HH", head[:4]) != (0x7FE0, 0x0010):
        return None
    explicit = syntax != "1.2.840.10008.1.2"
    if explicit and len(head) < 12:
        return None
    (length,) = struct.unpack(">L" if big else "<L", head[8:12] if explicit else head[4:8])
    return (here + (12 if explicit else 8), None if length == _UNDEFINED_LENGTH else length)


def _describe(
    values: HeaderValues, name: str, syntax: str, location: tuple[int, int | None] | None, file_bytes: int
) -> DicomFile:
    dataset = values.dataset
    sop_class = values.text("SOPClassUID")
    common: dict[str, Any] = {
        "file": name, "sop_class": sop_class, "modality": values.text("Modality"), "image_type": values.words("ImageType"),
        "sop_instance_uid": values.text("SOPInstanceUID"), "series_uid": values.text("SeriesInstanceUID"),
        "study_uid": values.text("StudyInstanceUID"), "patient_id": values.text("PatientID"),
        "issuer": values.text("IssuerOfPatientID"),
    }  # fmt: skip
    modality = modality_of_class(sop_class)
    if modality is not None:
        attributes = MR_ATTRIBUTES if modality == "MR" else ACQUISITION_ATTRIBUTES
        planes, defect = read_planes(values, name, syntax, location, file_bytes, attributes=attributes)
        if modality == "MR":
            planes = with_stored_values(planes, values)
        return DicomFile(**common, planes=planes, defect=defect, body_part=_body_part(values))
    common["defect"] = _frame_defect(values)
    if sop_class in SEGMENTATION:
        return DicomFile(**common, segments=described_segments(dataset), **_references(dataset))
    if sop_class == STRUCTURE_SET:
        series, images = referenced_objects(dataset)
        return DicomFile(**common, segments=described_rois(dataset), referenced_series=series, referenced_images=images)
    return DicomFile(**common)


def described_segments(dataset: Any) -> tuple[tuple[int, str], ...]:
    """Return number and label of each segment that the SegmentSequence of a segmentation describes, except its background."""
    background = background_of(dataset)
    segments = [(int(s.SegmentNumber), str(s.get("SegmentLabel", ""))) for s in dataset.get("SegmentSequence") or ()]
    return tuple(segment for segment in segments if segment[0] != background or not background)


def background_of(dataset: Any) -> int:
    """Return the pixel value of a LABELMAP segmentation that belongs to no segment (PixelPaddingValue); 0 for other kinds."""
    is_label_map = str(dataset.get("SegmentationType", "")) == "LABELMAP"
    return int(dataset.get("PixelPaddingValue") or 0) if is_label_map else 0


def _body_part(values: HeaderValues) -> str | None:
    """Return the body part by its code, else by its word; frames of a multi-frame image may name it apart."""
    groups = [
        *values.items("SharedFunctionalGroupsSequence"),
        *values.items("PerFrameFunctionalGroupsSequence")[:1],
    ]
    holders = [None, *(item for group in groups for item in values.items("FrameAnatomySequence", group))]
    for region in (item for holder in holders for item in values.items("AnatomicRegionSequence", holder)):
        part = _body_part_of_code(values.text("CodeValue", region), values.text("CodingSchemeDesignator", region))
        if part:
            return part
    return known_body_part(values.text("BodyPartExamined"))


@functools.cache
def _body_part_of_code(value: str, scheme: str) -> str | None:
    """Return the body part of a SNOMED CT code; pydicom compares the retired codes of SRT too."""
    code = require("pydicom.sr.coding", extra="dicom").Code
    seen = code(value, scheme, "")
    return next((part for known, part in PARTS_BY_CODE.items() if code(known, "SCT", "") == seen), None)


def _frame_defect(values: HeaderValues) -> HeaderDefect | None:
    """Return the defect of an object of another class whose functional groups do not agree with its frames."""
    if not values.items("PerFrameFunctionalGroupsSequence"):
        return None
    try:
        frames_of(values)
    except FrameCountError as error:
        return frames_disagree(error)
    return None


def _references(dataset: Any) -> dict[str, Any]:
    series = list(dataset.get("ReferencedSeriesSequence") or ())
    images = [
        str(image.ReferencedSOPInstanceUID) for item in series for image in item.get("ReferencedInstanceSequence") or ()
    ]
    groups = [
        *(dataset.get("SharedFunctionalGroupsSequence") or ()),
        *(dataset.get("PerFrameFunctionalGroupsSequence") or ()),
    ]
    for group in groups:
        for derivation in group.get("DerivationImageSequence") or ():
            images += [str(source.ReferencedSOPInstanceUID) for source in derivation.get("SourceImageSequence") or ()]
    return {
        "referenced_series": tuple(str(item.SeriesInstanceUID) for item in series if item.get("SeriesInstanceUID")),
        "referenced_images": tuple(dict.fromkeys(images)),
    }


def body_part_of(dataset: Any) -> str | None:
    """Return the scanned body part of an image by its header, as a defined term of BodyPartExamined; None if it is not known."""
    return _body_part(HeaderValues(dataset))
