"""Positions of voxels in the patient, and the inverse transform from a prepared volume to its source series."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, SupportsInt

Triple_mm = tuple[float, float, float]
Triple = tuple[int, int, int]
Row = tuple[float, float, float, float]
AffineRows = tuple[Row, Row, Row, Row]

# Defined terms of DICOM: PT is PET; CR and DX are radiographs, MG mammograms, XC photographs, OT gray images of another kind. And
# ECG, for signals, and TABLE, for rows of a table, which have a channel for each feature.
Modality = Literal["CT", "MR", "PT", "CR", "DX", "MG", "XC", "OT", "ECG", "TABLE"]
Unit = Literal["HU", "SD", "SUV", "1", "mV"]
SourceFormat = Literal["dicom", "nifti", "image", "wfdb", "table"]
Crop = Literal["lungs", "none", "multiple-of-8", "fixed-shape"]
BiasCorrection = Literal["none", "n4"]
MODALITY_NAMES: dict[Modality, str] = {
    "CT": "CT", "MR": "MR", "PT": "PET", "CR": "CR", "DX": "DX", "MG": "mammography", "XC": "photography",
    "OT": "gray images", "ECG": "ECG", "TABLE": "tables",
}  # fmt: skip
CT_CHANNELS = ("CT",)
PET_CHANNELS = ("PET",)
COLOR_CHANNELS = ("red", "green", "blue")
GRAY_CHANNELS = ("gray",)
IMAGE_CHANNELS: dict[tuple[str, ...], Modality] = {
    COLOR_CHANNELS: "XC", GRAY_CHANNELS: "OT", ("CR",): "CR", ("DX",): "DX", ("MG",): "MG",
}  # fmt: skip
"""Channels of 2-D images, with the modality that they have."""
TABLE_PREFIX = "column "
"""First word of the names of a table's features."""

_ECG_LEAD = r"M?L?I{1,3}|aV[RLF]|AV[RLF]|M?V[1-9]R?|CM[1-5]|[1-9]"

DataClass = Literal["identified", "de-identified", "derived", "model", "aggregate"]


def triple_of(values: Iterable[SupportsInt]) -> Triple:
    """Return three values as whole numbers."""
    i, j, k = (int(value) for value in values)
    return (i, j, k)


def modality_of(channels: tuple[str, ...]) -> Modality:
    """Return CT or ECG for a single channel of that name, PT for PET channels, that of 2-D images or tables for theirs; else MR."""
    if channels == CT_CHANNELS:
        return "CT"
    if is_table(channels):
        return "TABLE"
    if channels in IMAGE_CHANNELS:
        return IMAGE_CHANNELS[channels]
    if are_signals(channels):
        return "ECG"
    return "PT" if channels and all(map(is_pet_channel, channels)) else "MR"


def is_pet_channel(name: str) -> bool:
    """Return True for the name of a PET channel: PET, or PET and a word, such as `PET FDG`."""
    return re.match(r"(PET|PT)\b", name, re.IGNORECASE) is not None


def unit_of(channels: tuple[str, ...]) -> Unit:
    """Return the unit of prepared cases: HU (CT), SUV by body weight (PET), standard deviations (MR), mV (ECG), else 1."""
    units: dict[Modality, Unit] = {"CT": "HU", "PT": "SUV", "MR": "SD", "ECG": "mV"}
    return units.get(modality_of(channels), "1")


def is_table(channels: tuple[str, ...]) -> bool:
    """Return True for the features of a table."""
    return bool(channels) and channels[0].startswith(TABLE_PREFIX)


def are_images(channels: tuple[str, ...]) -> bool:
    """Return True for the channels of 2-D images: radiographs and photographs."""
    return channels in IMAGE_CHANNELS


def are_signals(channels: tuple[str, ...]) -> bool:
    """Return True for the channel of a signal: one lead of an ECG."""
    return len(channels) == 1 and ecg_channel(channels[0]) == channels[0]


def ecg_channel(description: str) -> str:
    """Return the channel of a signal by its description: `ECG`, or `ECG II` where it names the lead; empty if it is no ECG."""
    lead = description.removeprefix("ECG").strip(" -")
    if not lead:
        return "ECG"
    return f"ECG {lead}" if re.fullmatch(_ECG_LEAD, lead) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A regular lattice of voxels.

    Attributes:
        shape: number of voxels along each array axis.
        affine: 4 x 4, array index (0-based, voxel center) to RAS patient coordinates in mm.
    """

    shape: Triple
    affine: AffineRows

    @property
    def spacing_mm(self) -> Triple_mm:
        """Return the distance between neighbouring voxel centers along each array axis, mm."""
        columns = [[self.affine[row][axis] for row in range(3)] for axis in range(3)]
        a, b, c = (math.sqrt(sum(x * x for x in column)) for column in columns)
        return (a, b, c)

    @property
    def voxel_volume_mm3(self) -> float:
        """Return the volume of a voxel, mm³: the determinant of the affine, so axes may be oblique or sheared."""
        (a, b, c), (d, e, f), (g, h, i) = (row[:3] for row in self.affine[:3])
        return abs(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g))


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeInfo:
    """Geometry of one prepared volume (`volume_info.json`) and the inverse transform to its source grid.

    The volume's axes I, J, K run towards Right, Anterior, Superior (the closest to, for oblique series). Axis `a` of the volume
    is axis `source_axis[a]` of the source array, read backwards where `source_flipped[a]`. With n the source's voxel count
    on that axis, source index s (counted from the other end where flipped) lies at
    `s * source_spacing / spacing - crop_start[a]` on the volume.

    Attributes:
        case_id: pseudonymous id; the only name of the case in logs, reports and errors.
        source_format: dicom arrays are [slice, row, column] sorted along the slice normal; nifti arrays are
            as in the file; wfdb: the samples of a recording.
        source_grid: the source array's shape and affine.
        source_sha256: digest of the source's voxel values and geometry.
        source_axis, source_flipped: the axis permutation and flips described above.
        grid: shape and affine of `volume.npy`.
        crop_start: first voxel of the volume on the uncropped resampled grid; negative where the volume is padded: with a
            fixed shape, and for images, which are centered on black. The position of an image in its source follows from the
            affines of both grids.
        window_hu: values were clipped to this range, HU; None for MR, whose channels have mean 0 and standard deviation 1, and PET.
        unit: of the values: HU, standard deviations (SD), standardized uptake values by body weight (SUV, g/ml), mV for ECG, or 1
            for images, whose values go from 0 to 1.
        channels: names of the contrasts; those of MR and PET are the first axis of `volume.npy`.
        source_hu_start: `source_hu.npy` holds source HU, neither clipped nor resampled, of the part of the source array that
            the volume reaches: int16 (-32768 is padding), or float32 (NaN is padding) where HU are not whole numbers. This
            is its first voxel in the source array. None if there is no such file (training sets, MR, PET).
        body_part: scanned body part by the source's header, as a defined term of BodyPartExamined; None if it is not known.
        has_lungs: True if the voxels of a CT show a lung; None if it is not known.
        has_brain_mask: True if voxels outside of a brain mask were set to 0, and each MR channel has mean 0 and standard deviation
            1 inside of it.
    """

    case_id: str
    source_format: SourceFormat
    source_grid: Grid
    source_sha256: str
    source_axis: Triple
    source_flipped: tuple[bool, bool, bool]
    grid: Grid
    crop_start: Triple
    window_hu: tuple[float, float] | None
    unit: Unit = "HU"
    channels: tuple[str, ...] = CT_CHANNELS
    source_hu_start: Triple | None = None
    data_class: DataClass = "derived"
    body_part: str | None = None
    has_lungs: bool | None = None
    has_brain_mask: bool = False
