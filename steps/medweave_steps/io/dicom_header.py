"""One DICOM file: what it is, where its planes lie in the patient, and where their pixels lie in the file."""

from __future__ import annotations

import functools
import logging
import os
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from medweave_steps.contracts.body_parts import PARTS_BY_CODE, known_body_part
from medweave_steps.io.dicom_uids import fill_from_file_meta
from medweave_steps.io.quick_header import quick_header
from medweave_steps.runtime.imports import require

CT_IMAGE = "1.2.840.10008.5.1.4.1.1.2"
ENHANCED_CT = ("1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.2.2")
SEGMENTATION = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
DIRECTORY = "1.2.840.10008.1.3.10"
EXPLICIT_BIG_ENDIAN = "1.2.840.10008.1.2.2"
DEFLATED = "1.2.840.10008.1.2.1.99"
NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", EXPLICIT_BIG_ENDIAN, DEFLATED)

_UNDEFINED_LENGTH = 0xFFFFFFFF
_TAGS = [
    "SpecificCharacterSet", "ImageType", "SOPClassUID", "SOPInstanceUID", "Modality", "PatientID", "IssuerOfPatientID",
    "StudyInstanceUID", "SeriesInstanceUID", "ImagePositionPatient", "ImageOrientationPatient", "FrameOfReferenceUID",
    "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns", "PixelSpacing",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit",
    "RescaleIntercept", "RescaleSlope", "RescaleType", "ModalityLUTSequence", "ReferencedSeriesSequence",
    "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence", "SegmentSequence", "SegmentationType",
    "BodyPartExamined", "AnatomicRegionSequence",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    """How stored values are laid out in a file.

    Attributes:
        padding: lowest and highest stored value that means "no measurement here", or None.
    """

    transfer_syntax: str
    rows: int
    columns: int
    bits_allocated: int
    bits_stored: int
    signed: bool
    samples: int
    photometric: str
    padding: tuple[int, int] | None

    @property
    def native(self) -> bool:
        """True where planes are stored uncompressed at a known place."""
        return self.transfer_syntax in NATIVE

    @property
    def plane_bytes(self) -> int:
        """Bytes of one uncompressed plane."""
        return self.rows * self.columns * self.samples * self.bits_allocated // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One slice of a series: a single-frame file, or one frame of a multi-frame file.

    Attributes:
        file: path relative to the cohort.
        frame: 0-based frame in the file.
        position_lps: centre of the first voxel, mm; None where the header lacks it.
        orientation: direction cosines of a row and of a column (LPS); None where the header lacks it.
        pixel_spacing_mm: distance between rows, and between columns.
        slope, intercept: stored value to HU; None where the header lacks them.
        pixel_offset: byte in the file where the file's pixel data begin; None where there are none.
        pixel_bytes: length of the file's pixel data; None where encapsulated (compressed).
    """

    file: str
    frame: int
    sop_instance_uid: str
    position_lps: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    pixel_spacing_mm: tuple[float, ...] | None
    frame_of_reference: str
    slope: float | None
    intercept: float | None
    rescale_type: str
    frame_type: tuple[str, ...]
    layout: PixelLayout
    pixel_offset: int | None
    pixel_bytes: int | None
    file_bytes: int
    num_frames: int


class UnnamedFileError(ValueError):
    """A complete header without an identifier that grouping needs; the text names the attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomFile:
    """What grouping needs to know about one file.

    Attributes:
        planes: its planes, for CT images; empty for anything else.
        referenced_series: series that a segmentation was drawn on.
        referenced_images: source images that a segmentation names.
        segments: segment number to label, for a segmentation.
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
    referenced_series: tuple[str, ...] = ()
    referenced_images: tuple[str, ...] = ()
    segments: tuple[tuple[int, str], ...] = ()
    body_part: str | None = None


def load_pydicom() -> Any:
    """pydicom, told not to warn: its warnings quote values, and values may be names or UIDs."""
    pydicom = require("pydicom", extra="dicom")
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"pydicom\b")
    return pydicom


def looks_like_dicom(stream: BinaryIO) -> bool:
    """True for a Part 10 file, and for one without preamble that begins with group 0008."""
    head = stream.read(132)
    stream.seek(0)
    return head[128:132] == b"DICM" or head[:2] == b"\x08\x00"


def read_file(folder: Path, name: str) -> DicomFile | None:
    """Reads one file's header, without its pixels.

    Args:
        folder: the cohort.
        name: path relative to it.
    Returns:
        None where the file is not DICOM.
    Raises:
        UnnamedFileError: its header lacks an identifier without which the file belongs to nothing.
        ValueError: it is DICOM but its header cannot be read (cut off, or not to the standard).
    """
    pydicom = load_pydicom()
    path = folder / name
    # Opened by number, so that no message of a library can quote the path.
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as stream:
        if not looks_like_dicom(stream):
            return None
        file_bytes = path.stat().st_size
        quick = _read_quickly(stream.fileno(), name, file_bytes)
        if quick is not None:
            return quick
        try:
            dataset = pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=_TAGS, force=True)
            meta = dataset.file_meta
            if str(meta.get("MediaStorageSOPClassUID", "")) == DIRECTORY:
                return None
            syntax = str(meta.get("TransferSyntaxUID", "1.2.840.10008.1.2"))
            fill_from_file_meta(dataset)
            _check_named(dataset)
            location = _locate_pixels(stream, syntax, file_bytes)
            return _describe(dataset, name, syntax, location, file_bytes)
        except UnnamedFileError:
            raise
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError("its header is cut off or not to the standard") from error  # raised by pydicom itself
        except Exception as error:  # pydicom raises many kinds for a damaged header; their texts may quote values
            raise ValueError("its header is cut off or not to the standard") from error


def _check_named(dataset: Any) -> None:
    """Raise UnnamedFileError for a file without SOPClassUID or SeriesInstanceUID."""
    for keyword, tag in (("SOPClassUID", "(0008,0016)"), ("SeriesInstanceUID", "(0020,000E)")):
        if not str(dataset.get(keyword) or "").strip(" \0"):
            if keyword not in dataset and "Rows" not in dataset:  # neither its identity nor its image
                raise ValueError("the header ends before it says what the file is")
            raise UnnamedFileError(f"{keyword} {tag} is empty or missing")


def _read_quickly(descriptor: int, name: str, file_bytes: int) -> DicomFile | None:
    """The same for a plain single-frame image, without pydicom; None for anything else."""
    header = quick_header(descriptor)
    if header is None or header.get("SOPClassUID") != CT_IMAGE:
        return None
    if not header.get("SeriesInstanceUID") or not header.get("SOPInstanceUID"):
        return None  # empty, or in the file meta header
    location = (header.pixel_offset, header.pixel_bytes)
    try:
        return _describe(header, name, header.meta["TransferSyntaxUID"], location, file_bytes)
    except (ValueError, TypeError):
        return None


def _locate_pixels(stream: BinaryIO, syntax: str, file_bytes: int) -> tuple[int, int | None] | None:
    """Byte offset and length of the pixel data's value; the stream stands where pydicom stopped, before that element."""
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
    dataset: Any, name: str, syntax: str, location: tuple[int, int | None] | None, file_bytes: int
) -> DicomFile:
    sop_class = str(dataset.get("SOPClassUID", ""))
    image_type = _words(dataset.get("ImageType"))
    common: dict[str, Any] = {
        "file": name, "sop_class": sop_class, "modality": str(dataset.get("Modality") or ""), "image_type": image_type,
        "sop_instance_uid": str(dataset.get("SOPInstanceUID", "")),
        "series_uid": str(dataset.get("SeriesInstanceUID", "")), "study_uid": str(dataset.get("StudyInstanceUID", "")),
        "patient_id": str(dataset.get("PatientID") or "").strip(),
        "issuer": str(dataset.get("IssuerOfPatientID") or "").strip(),
    }  # fmt: skip
    if sop_class == CT_IMAGE or sop_class in ENHANCED_CT:
        layout = _layout(dataset, syntax)
        planes = _planes(dataset, name, layout, location, file_bytes, image_type)
        return DicomFile(**common, planes=planes, body_part=_body_part(dataset))
    if sop_class in SEGMENTATION:
        segments = tuple(
            (int(s.SegmentNumber), str(s.get("SegmentLabel", ""))) for s in dataset.get("SegmentSequence") or ()
        )
        return DicomFile(**common, segments=segments, **_references(dataset))
    return DicomFile(**common)


def _body_part(dataset: Any) -> str | None:
    """Return the body part by its code, else by its word; frames of a multi-frame image may name it apart."""
    groups = [
        *(dataset.get("SharedFunctionalGroupsSequence") or ()),
        *(dataset.get("PerFrameFunctionalGroupsSequence") or ())[:1],
    ]
    holders = [dataset, *(item for group in groups for item in group.get("FrameAnatomySequence") or ())]
    for region in (item for holder in holders for item in holder.get("AnatomicRegionSequence") or ()):
        part = _body_part_of_code(str(region.get("CodeValue", "")), str(region.get("CodingSchemeDesignator", "")))
        if part:
            return part
    return known_body_part(str(dataset.get("BodyPartExamined") or ""))


@functools.cache
def _body_part_of_code(value: str, scheme: str) -> str | None:
    """Return the body part of a SNOMED CT code; pydicom compares the retired codes of SRT too."""
    code = require("pydicom.sr.coding", extra="dicom").Code
    seen = code(value, scheme, "")
    return next((part for known, part in PARTS_BY_CODE.items() if code(known, "SCT", "") == seen), None)


def _words(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (str(value),) if isinstance(value, str) else tuple(str(item) for item in value)


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    if value is None or isinstance(value, str | float | int) or len(value) != count:
        return None
    return tuple(float(item) for item in value)


def _number(value: Any) -> float | None:
    return None if value is None or value == "" else float(value)


def _layout(dataset: Any, syntax: str) -> PixelLayout:
    signed = int(dataset.get("PixelRepresentation") or 0) == 1
    allocated = int(dataset.get("BitsAllocated") or 16)
    padding = None
    if dataset.get("PixelPaddingValue") is not None:
        first = _stored(dataset.PixelPaddingValue, signed, allocated)
        limit = dataset.get("PixelPaddingRangeLimit")
        second = first if limit is None else _stored(limit, signed, allocated)
        padding = (min(first, second), max(first, second))
    return PixelLayout(
        transfer_syntax=syntax,
        rows=int(dataset.get("Rows") or 0),
        columns=int(dataset.get("Columns") or 0),
        bits_allocated=allocated,
        bits_stored=int(dataset.get("BitsStored") or allocated),
        signed=signed,
        samples=int(dataset.get("SamplesPerPixel") or 1),
        photometric=str(dataset.get("PhotometricInterpretation") or ""),
        padding=padding,
    )


def _stored(value: Any, signed: bool, bits: int) -> int:
    """A padding value in the representation of the pixels: some scanners write it with the other signedness."""
    number = int.from_bytes(value, "little") if isinstance(value, bytes) else int(value)
    span = 1 << bits
    if signed and number >= span // 2:
        return number - span
    return number + span if not signed and number < 0 else number


def _planes(
    dataset: Any,
    name: str,
    layout: PixelLayout,
    location: tuple[int, int | None] | None,
    file_bytes: int,
    image_type: tuple[str, ...],
) -> tuple[Plane, ...]:
    num_frames = int(dataset.get("NumberOfFrames") or 1)
    shared = (dataset.get("SharedFunctionalGroupsSequence") or [None])[0]
    groups = dataset.get("PerFrameFunctionalGroupsSequence") or [None] * num_frames
    slots = [_Attributes(dataset, shared, group) for group in groups]
    return tuple(
        Plane(
            file=name,
            frame=frame,
            sop_instance_uid=str(dataset.get("SOPInstanceUID", "")),
            position_lps=_numbers(slot.find("ImagePositionPatient", "PlanePositionSequence"), 3),
            orientation=_numbers(slot.find("ImageOrientationPatient", "PlaneOrientationSequence"), 6),
            pixel_spacing_mm=_numbers(slot.find("PixelSpacing", "PixelMeasuresSequence"), 2),
            frame_of_reference=str(dataset.get("FrameOfReferenceUID") or ""),
            slope=_number(slot.find("RescaleSlope", "PixelValueTransformationSequence")),
            intercept=_number(slot.find("RescaleIntercept", "PixelValueTransformationSequence")),
            rescale_type=_rescale_type(dataset, slot),
            frame_type=_words(slot.find("FrameType", "CTImageFrameTypeSequence")) or image_type,
            layout=layout,
            pixel_offset=None if location is None else location[0],
            pixel_bytes=None if location is None else location[1],
            file_bytes=file_bytes,
            num_frames=num_frames,
        )
        for frame, slot in enumerate(slots)
    )


def _rescale_type(dataset: Any, slot: _Attributes) -> str:
    if dataset.get("ModalityLUTSequence"):
        return "LUT"
    return str(slot.find("RescaleType", "PixelValueTransformationSequence") or "HU")


@dataclass(frozen=True, slots=True)
class _Attributes:
    """Looks an attribute up where single-frame and multi-frame images keep it."""

    dataset: Any
    shared: Any
    frame: Any

    def find(self, keyword: str, sequence: str) -> Any:
        for group in (self.frame, self.shared):
            items = None if group is None else group.get(sequence)
            if items and items[0].get(keyword) is not None:
                return items[0].get(keyword)
        return self.dataset.get(keyword)


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
