"""The planes of one image file: their geometry, their meaning in HU, and how and where their pixels are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from medweave_steps.io.dicom.frames import Frame, FrameCountError, frames_of
from medweave_steps.io.dicom.values import HeaderValues

EXPLICIT_BIG_ENDIAN = "1.2.840.10008.1.2.2"
DEFLATED = "1.2.840.10008.1.2.1.99"
NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", EXPLICIT_BIG_ENDIAN, DEFLATED)

# Attributes that belong to one acquisition or reconstruction, each with the functional group that holds it in a
# multi-frame object. `check` compares them along the stack.
ACQUISITION_ATTRIBUTES = (
    ("AcquisitionNumber", ""),
    ("FrameAcquisitionNumber", "FrameContentSequence"),
    ("AcquisitionTime", ""),
    ("ContrastBolusAgent", ""),
    ("KVP", "CTXRayDetailsSequence"),
    ("ConvolutionKernel", "CTReconstructionSequence"),
    ("TemporalPositionIdentifier", ""),
    ("TemporalPositionIndex", "FrameContentSequence"),
    ("NominalPercentageOfCardiacPhase", "CardiacSynchronizationSequence"),
    ("StackID", "FrameContentSequence"),
    ("MonoenergeticEnergyEquivalent", "MultienergyCTCharacteristicsSequence"),
)
# Likewise of MR: each has one value in a volume. A multi-frame object has other names for some of them.
MR_ATTRIBUTES = (
    ("EchoTime", ""),
    ("EffectiveEchoTime", "MREchoSequence"),
    ("InversionTime", ""),
    ("InversionTimes", "MRModifierSequence"),
    ("DiffusionBValue", "MRDiffusionSequence"),
    ("TemporalPositionIdentifier", ""),
    ("TemporalPositionIndex", "FrameContentSequence"),
    ("StackID", "FrameContentSequence"),
)
PLANE_ATTRIBUTES = (
    "ImageType", "ImagePositionPatient", "ImageOrientationPatient", "FrameOfReferenceUID", "SamplesPerPixel",
    "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns", "PixelSpacing", "BitsAllocated", "BitsStored",
    "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleIntercept", "RescaleSlope",
    "RescaleType", "ModalityLUTSequence", "MultienergyCTAcquisition", "RealWorldValueMappingSequence",
    "MeasurementUnitsCodeSequence", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
    *{key: None for key, group in (*ACQUISITION_ATTRIBUTES, *MR_ATTRIBUTES) if group != "FrameContentSequence"},
)  # fmt: skip

Attributes = tuple[tuple[str, str], ...]

_HOUNSFIELD_CODES = ("[hnsf'U]", "hnsf'U")  # UCUM
_SAME_CONVERSION = 1e-6
# Attributes whose unusable values leave the pixels or their meaning unknown. `check` judges geometry and rescaling separately.
_NEEDED = frozenset(
    (
        "NumberOfFrames", "Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
        "PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleType", "ImageType", "FrameType", "ModalityLUTSequence",
        "RealWorldValueMappingSequence", "MeasurementUnitsCodeSequence", "SharedFunctionalGroupsSequence",
        "PerFrameFunctionalGroupsSequence",
    )
)  # fmt: skip
_MAX_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    """The layout of stored values in a file.

    Attributes:
        high_bit: position of the highest bit of a value in its cell, from 0; the standard demands `bits_stored - 1`.
        padding: lowest and highest stored value that means "no measurement here", or None.
    """

    transfer_syntax: str
    rows: int
    columns: int
    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool
    samples: int
    photometric: str
    padding: tuple[int, int] | None

    @property
    def native(self) -> bool:
        """Whether planes are stored uncompressed at a known offset."""
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
        position_lps: center of the first voxel, mm; None where the header lacks it.
        orientation: direction cosines of a row and of a column (LPS); None where the header lacks it.
        pixel_spacing_mm: distance between rows, and between columns.
        slope, intercept: stored value to HU (MR: to an arbitrary unit, PET: to SUV); None where the header lacks them.
        rescale_type: as the header has it; empty where it has none, "LUT" for a look-up table, "UNSTATED" where the
            standard demands a type and the header has none.
        real_world: "" without a map to real-world values, "HU" for one that agrees with slope and intercept, else why it
            does not.
        acquisition: values of `ACQUISITION_ATTRIBUTES`, or of `MR_ATTRIBUTES` for MR, in their order; empty texts where the
            header lacks them.
        pixel_offset: byte in the file where the pixel data begin; None without pixel data.
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
    real_world: str
    frame_type: tuple[str, ...]
    acquisition: tuple[str, ...]
    layout: PixelLayout
    pixel_offset: int | None
    pixel_bytes: int | None
    file_bytes: int
    num_frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderDefect:
    """The reason why the pixels of a file cannot be read as slices, independent of the other files of its series.

    Attributes:
        code: of the finding that `check` makes of it.
        what: the fault, as the end of a sentence about a number of files.
        seen, expected: parts of the finding; no value of the header but numbers.
    """

    code: str
    what: str
    seen: str
    expected: str


def read_planes(
    values: HeaderValues,
    name: str,
    syntax: str,
    location: tuple[int, int | None] | None,
    file_bytes: int,
    *,
    attributes: Attributes = ACQUISITION_ATTRIBUTES,
) -> tuple[tuple[Plane, ...], HeaderDefect | None]:
    """Return the planes of an image file, and the defect that makes them unusable, if any.

    Args:
        values: the file's header.
        name: path relative to the cohort.
        syntax: UID of the transfer syntax.
        location: offset and length of the pixel data; None where the file has none.
        file_bytes: size of the file.
        attributes: attributes of `Plane.acquisition`.
    """
    try:
        frames = frames_of(values)
    except FrameCountError as error:
        return (), frames_disagree(error)
    layout = _layout(values, syntax)
    offset, length = (None, None) if location is None else location
    top = [values.text(keyword) for keyword, _ in attributes]
    instance, reference = values.text("SOPInstanceUID"), values.text("FrameOfReferenceUID")
    planes = []
    for frame in frames:
        slope = frame.number_of("RescaleSlope", "PixelValueTransformationSequence")
        intercept = frame.number_of("RescaleIntercept", "PixelValueTransformationSequence")
        planes.append(
            Plane(
                file=name,
                frame=frame.number,
                sop_instance_uid=instance,
                position_lps=frame.position_lps,
                orientation=frame.orientation,
                pixel_spacing_mm=frame.pixel_spacing_mm,
                frame_of_reference=reference,
                slope=slope,
                intercept=intercept,
                rescale_type=_rescale_type(frame),
                real_world=_real_world(frame, slope, intercept),
                frame_type=frame.frame_type,
                acquisition=_acquisition(frame, attributes, top),
                layout=layout,
                pixel_offset=offset,
                pixel_bytes=length,
                file_bytes=file_bytes,
                num_frames=len(frames),
            )
        )
    return tuple(planes), _defect(values, layout)


def with_stored_values(planes: Sequence[Plane], values: HeaderValues) -> tuple[Plane, ...]:
    """Return planes of MR whose values are the stored ones where the header has no rescaling; see PS3.3, C.11.1.1.2."""
    if values.unusable.keys() & {"RescaleSlope", "RescaleIntercept"}:
        return tuple(planes)
    return tuple(
        dataclasses.replace(plane, slope=1.0, intercept=0.0)
        if plane.slope is None and plane.intercept is None
        else plane
        for plane in planes
    )


def frames_disagree(error: FrameCountError) -> HeaderDefect:
    """Return the defect of an object whose functional groups do not agree with its number of frames."""
    return HeaderDefect(
        code="frames-disagree", what="the functional groups do not match the number of frames", seen=str(error),
        expected="one item in PerFrameFunctionalGroupsSequence (5200,9230) per frame of NumberOfFrames (0028,0008)",
    )  # fmt: skip


def _defect(values: HeaderValues, layout: PixelLayout) -> HeaderDefect | None:
    unusable = [keyword for keyword in values.unusable if keyword in _NEEDED]
    sizes = {"Rows": layout.rows, "Columns": layout.columns, "SamplesPerPixel": layout.samples}
    bits = {"BitsAllocated": layout.bits_allocated, "BitsStored": layout.bits_stored}
    unusable += [f"{keyword} {number}" for keyword, number in sizes.items() if not 1 <= number < 1 << 16]
    unusable += [f"{keyword} {number}" for keyword, number in bits.items() if not 1 <= number <= _MAX_BITS]
    unusable += [
        f"{keyword} absent" for keyword in ("PixelRepresentation", "BitsAllocated") if values.number(keyword) is None
    ]
    if values.integer("PixelRepresentation") not in (0, 1, None):
        unusable.append("PixelRepresentation that is neither 0 nor 1")
    if not unusable:
        return None
    return HeaderDefect(
        code="unusable-header", what="attributes that define the pixels are invalid",
        seen=", ".join(dict.fromkeys(unusable)), expected="values that conform to the DICOM standard",
    )  # fmt: skip


def _layout(values: HeaderValues, syntax: str) -> PixelLayout:
    signed = values.integer("PixelRepresentation") == 1
    allocated = _or(values.integer("BitsAllocated"), 16)
    stored = _or(values.integer("BitsStored"), allocated)
    return PixelLayout(
        transfer_syntax=syntax,
        rows=_or(values.integer("Rows"), 0),
        columns=_or(values.integer("Columns"), 0),
        bits_allocated=allocated,
        bits_stored=stored,
        high_bit=_or(values.integer("HighBit"), stored - 1),
        signed=signed,
        samples=_or(values.integer("SamplesPerPixel"), 1),
        photometric=values.text("PhotometricInterpretation"),
        padding=_padding(values, signed, allocated) if 1 <= allocated <= _MAX_BITS else None,
    )


def _or(number: int | None, default: int) -> int:
    return default if number is None else number


def _padding(values: HeaderValues, signed: bool, bits: int) -> tuple[int, int] | None:
    """Return the range of padding in the representation of the pixels: some scanners write the other signedness."""
    first = _stored(values, "PixelPaddingValue", signed, bits)
    if first is None:
        return None
    second = _stored(values, "PixelPaddingRangeLimit", signed, bits)
    second = first if second is None else second
    return (min(first, second), max(first, second))


def _stored(values: HeaderValues, keyword: str, signed: bool, bits: int) -> int | None:
    value = values.value(keyword)
    number = int.from_bytes(value, "little") if isinstance(value, bytes) and value else values.integer(keyword)
    if number is None:
        return None
    span = 1 << bits
    if signed and number >= span // 2:
        return number - span
    return number + span if not signed and number < 0 else number


def _rescale_type(frame: Frame) -> str:
    if frame.values.items("ModalityLUTSequence"):
        return "LUT"
    kind = frame.text("RescaleType", "PixelValueTransformationSequence")
    return "UNSTATED" if not kind and frame.values.text("MultienergyCTAcquisition").upper() == "YES" else kind


def _real_world(frame: Frame, slope: float | None, intercept: float | None) -> str:
    """Return `Plane.real_world`."""
    values = frame.values
    maps = frame.items("RealWorldValueMappingSequence")
    units = [code for item in (*maps, values.dataset) for code in values.items("MeasurementUnitsCodeSequence", item)]
    if not maps and not units:
        return ""
    if any(values.text("CodeValue", code) not in _HOUNSFIELD_CODES for code in units) or not units:
        return "measurement units that differ from Hounsfield units"
    for item in maps:
        other = values.number("RealWorldValueSlope", item), values.number("RealWorldValueIntercept", item)
        pairs = zip(other, (slope, intercept), strict=True)
        if any(a is None or b is None or abs(a - b) > _SAME_CONVERSION * max(1, abs(b)) for a, b in pairs):
            return "a conversion to Hounsfield units that differs from RescaleSlope and RescaleIntercept"
    return "HU"


def _acquisition(frame: Frame, attributes: Attributes, top: list[str]) -> tuple[str, ...]:
    if frame.own is None and frame.shared is None:
        return tuple(top)
    return tuple(
        (frame.text(keyword, group) if group else "") or default
        for (keyword, group), default in zip(attributes, top, strict=True)
    )
