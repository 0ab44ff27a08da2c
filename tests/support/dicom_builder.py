"""Small CT series, enhanced CT and DICOM SEG as real files, for tests of whatever reads DICOM."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence as DicomSequence
from pydicom.uid import (
    CTImageStorage,
    EnhancedCTImageStorage,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
FEET_FIRST_PRONE = (-1.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # rows run to the right: the slice normal points to the feet
SYNTAXES = {
    "implicit": ImplicitVRLittleEndian,
    "explicit": ExplicitVRLittleEndian,
    "rle": RLELossless,
    "jpeg2000": JPEG2000Lossless,
    "jpegls": JPEGLSLossless,
}


def uid(*parts: object) -> str:
    """Return a valid UID that depends only on the words."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
    return f"2.25.{int(digest[:30], 16)}"


def rotated(axis: Sequence[float], degrees: float) -> tuple[float, ...]:
    """Return the axial orientation turned about an axis (Rodrigues)."""
    x, y, z = np.asarray(axis, dtype=float) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.radians(degrees)
    turn = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return tuple(float(v) for v in np.concatenate((turn @ [1, 0, 0], turn @ [0, 1, 0])))


@dataclass(kw_only=True)
class CtSeries:
    """The description of a series; `datasets` makes its slices, in the order of the slice normal.

    Attributes:
        shape: slices, rows, columns.
        spacing_mm: between slices, rows, columns.
        slopes, intercepts: one for all slices, or one each.
    """

    key: str = "a"
    patient: str = "patient-a"
    shape: tuple[int, int, int] = (6, 36, 34)  # OpenJPEG refuses sides below 32
    spacing_mm: tuple[float, float, float] = (2.0, 0.7, 0.8)
    orientation: tuple[float, ...] = AXIAL
    origin: tuple[float, float, float] = (-120.0, -90.0, -300.0)
    signed: bool = True
    bits_stored: int = 16
    slopes: float | Sequence[float] = 1.0
    intercepts: float | Sequence[float] = -1024.0
    padding: int | None = None
    padding_limit: int | None = None
    stored: np.ndarray | None = field(default=None)

    def __post_init__(self) -> None:
        if self.stored is None:
            rng = np.random.default_rng(int(hashlib.sha256(self.key.encode()).hexdigest()[:8], 16))
            self.stored = rng.integers(0, 2000, self.shape)
            self.stored[:, 0, 0] = 0  # air, so that values look like HU

    @property
    def normal(self) -> np.ndarray:
        """Return the unit vector across the slices, LPS."""
        return np.cross(self.orientation[:3], self.orientation[3:])

    def position(self, index: float) -> np.ndarray:
        """Return the ImagePositionPatient of a slice, LPS, mm."""
        return np.asarray(self.origin) + self.normal * self.spacing_mm[0] * index

    def hu(self) -> np.ndarray:
        """Return the expected voxels, float32 [slice, row, column]."""
        assert self.stored is not None
        slopes, intercepts = (
            np.broadcast_to(np.asarray(v, dtype=np.float32), self.shape[:1]) for v in (self.slopes, self.intercepts)
        )
        hu = self.stored.astype(np.float32) * slopes[:, None, None] + intercepts[:, None, None]
        if self.padding is not None:
            ends = sorted((self.padding, self.padding if self.padding_limit is None else self.padding_limit))
            hu[(self.stored >= ends[0]) & (self.stored <= ends[1])] = -1024
        return hu.astype(np.float32)

    def affine_lps(self) -> np.ndarray:
        """Return the affine from array index [slice, row, column] to LPS, mm."""
        affine = np.eye(4)
        affine[:3, 0] = self.normal * self.spacing_mm[0]
        affine[:3, 1] = np.asarray(self.orientation[3:]) * self.spacing_mm[1]
        affine[:3, 2] = np.asarray(self.orientation[:3]) * self.spacing_mm[2]
        affine[:3, 3] = self.origin
        return affine

    def affine_ras(self) -> np.ndarray:
        """Return the affine from array index [slice, row, column] to RAS, mm."""
        return np.diag([-1.0, -1.0, 1.0, 1.0]) @ self.affine_lps()

    def datasets(self) -> list[Dataset]:
        """Return one dataset per slice, uncompressed."""
        return [self._slice(index) for index in range(self.shape[0])]

    def write(self, folder: Path, *, syntax: str = "explicit", names: Sequence[str] | None = None) -> list[Path]:
        """Write the series; see `write_datasets`."""
        return write_datasets(self.datasets(), folder, syntax=syntax, names=names)

    def _slice(self, index: int) -> Dataset:
        assert self.stored is not None
        dataset = self._common(CTImageStorage, uid(self.key, "image", index))
        dataset.ImagePositionPatient = [decimal_string(v) for v in self.position(index)]
        dataset.ImageOrientationPatient = [decimal_string(v) for v in self.orientation]
        dataset.PixelSpacing = [decimal_string(v) for v in self.spacing_mm[1:]]
        dataset.SliceThickness = "5"  # never the distance between slices
        dataset.InstanceNumber = 1000 - 7 * index % 13
        dataset.RescaleSlope = decimal_string(np.broadcast_to(self.slopes, self.shape[:1])[index])
        dataset.RescaleIntercept = decimal_string(np.broadcast_to(self.intercepts, self.shape[:1])[index])
        dataset.RescaleType = "HU"
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        self._pixels(dataset, self.stored[index])
        return dataset

    def _pixels(self, dataset: Dataset, stored: np.ndarray) -> None:
        dataset.Rows, dataset.Columns = self.shape[1:]
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, self.bits_stored, self.bits_stored - 1
        dataset.PixelRepresentation = int(self.signed)
        vr = "SS" if self.signed else "US"
        if self.padding is not None:
            dataset.add_new("PixelPaddingValue", vr, self.padding)
        if self.padding_limit is not None:
            dataset.add_new("PixelPaddingRangeLimit", vr, self.padding_limit)
        dataset.add_new("PixelData", "OW", stored.astype("<i2" if self.signed else "<u2").tobytes())

    def _common(self, sop_class: str, instance: str) -> Dataset:
        dataset = Dataset()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.SOPClassUID, dataset.SOPInstanceUID = sop_class, instance
        dataset.PatientName, dataset.PatientID = "Doe^Jane", self.patient
        dataset.PatientBirthDate, dataset.PatientSex = "19500101", "O"
        dataset.StudyInstanceUID, dataset.SeriesInstanceUID = uid(self.patient, "study"), uid(self.key, "series")
        dataset.FrameOfReferenceUID = uid(self.key, "frame")
        dataset.PositionReferenceIndicator = ""
        dataset.StudyDate = dataset.SeriesDate = dataset.ContentDate = "20200101"
        dataset.StudyTime = dataset.SeriesTime = dataset.ContentTime = "120000"
        dataset.AccessionNumber = dataset.ReferringPhysicianName = dataset.StudyID = ""
        dataset.Modality, dataset.Manufacturer = "CT", "Test"
        dataset.SeriesNumber, dataset.InstanceNumber = 1, 1
        dataset.KVP = "120"
        return dataset

    def enhanced(self, *, order: Sequence[int] | None = None) -> Dataset:
        """Return the scan as one Enhanced CT object, frames in the order of the argument."""
        assert self.stored is not None
        order = list(range(self.shape[0])) if order is None else list(order)
        dataset = self._common(EnhancedCTImageStorage, uid(self.key, "enhanced"))
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
        dataset.NumberOfFrames = len(order)
        self._pixels(dataset, self.stored[order])
        measures, oriented, frame_type = Dataset(), Dataset(), Dataset()
        measures.PixelSpacing = [decimal_string(v) for v in self.spacing_mm[1:]]
        measures.SliceThickness = "5"
        oriented.ImageOrientationPatient = [decimal_string(v) for v in self.orientation]
        frame_type.FrameType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
        shared = Dataset()
        shared.PixelMeasuresSequence = DicomSequence([measures])
        shared.PlaneOrientationSequence = DicomSequence([oriented])
        shared.CTImageFrameTypeSequence = DicomSequence([frame_type])
        dataset.SharedFunctionalGroupsSequence = DicomSequence([shared])
        dataset.PerFrameFunctionalGroupsSequence = DicomSequence([self._frame_group(index) for index in order])
        return dataset

    def _frame_group(self, index: int) -> Dataset:
        place, rescale = Dataset(), Dataset()
        place.ImagePositionPatient = [decimal_string(v) for v in self.position(index)]
        rescale.RescaleSlope = decimal_string(np.broadcast_to(self.slopes, self.shape[:1])[index])
        rescale.RescaleIntercept = decimal_string(np.broadcast_to(self.intercepts, self.shape[:1])[index])
        rescale.RescaleType = "HU"
        group = Dataset()
        group.PlanePositionSequence = DicomSequence([place])
        group.PixelValueTransformationSequence = DicomSequence([rescale])
        return group


def decimal_string(value: float) -> str:
    """Return a decimal string of at most 16 characters, as DICOM requires."""
    return f"{float(value):.10f}"[:16]


def write_datasets(
    datasets: Sequence[Dataset], folder: Path, *, syntax: str = "explicit", names: Sequence[str] | None = None
) -> list[Path]:
    """Write datasets as files in a transfer syntax; return their paths in the same order."""
    names = [f"{index:03d}.dcm" for index in range(len(datasets))] if names is None else names
    paths = []
    for dataset, name in zip(datasets, names, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        dataset = copy.deepcopy(dataset)
        if syntax in ("rle", "jpeg2000", "jpegls"):
            dataset.compress(SYNTAXES[syntax], generate_instance_uid=False)
        else:
            dataset.file_meta.TransferSyntaxUID = SYNTAXES[syntax]
        pydicom.dcmwrite(path, dataset, enforce_file_format=True)
        paths.append(path)
    return paths


def segmentation(
    source: Sequence[Dataset],
    mask: np.ndarray,
    *,
    kind: str = "BINARY",
    labels: Sequence[str] = ("nodule",),
    keep_empty: bool = False,
    **options: Any,
) -> Dataset:
    """Return a DICOM SEG of a mask with label values 1, 2 … drawn on source images, made by highdicom.

    Args:
        mask: uint8 [slice, row, column] in the order of `source`.
        kind: BINARY, FRACTIONAL or LABELMAP.
        keep_empty: also store frames without a voxel.
    """
    import highdicom as hd
    from highdicom.sr.coding import CodedConcept

    descriptions = [
        hd.seg.SegmentDescription(
            segment_number=number,
            segment_label=label,
            segmented_property_category=CodedConcept("49755003", "SCT", "Morphologically Abnormal Structure"),
            segmented_property_type=CodedConcept("27925004", "SCT", "Nodule"),
            algorithm_type=hd.seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for number, label in enumerate(labels, start=1)
    ]
    return hd.seg.Segmentation(
        source_images=list(source),
        pixel_array=mask.astype(np.uint8),
        segmentation_type=kind,
        segment_descriptions=descriptions,
        series_instance_uid=uid("seg-series", kind),
        series_number=2,
        sop_instance_uid=uid("seg", kind, mask.tobytes()),
        instance_number=1,
        manufacturer="Test",
        manufacturer_model_name="Test",
        software_versions="1",
        device_serial_number="1",
        omit_empty_frames=not keep_empty,
        **options,
    )
