"""Shapes as closed contours, and RT Structure Sets of them as real files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence as DicomSequence
from pydicom.uid import ExplicitVRLittleEndian, RTStructureSetStorage

from support.dicom_builder import CtSeries, uid


@dataclass(frozen=True, kw_only=True)
class DrawnRoi:
    """One ROI: its contours as (slice, vertices (row, column)), in voxels of the series."""

    name: str
    contours: Sequence[tuple[float, np.ndarray]] = field(default_factory=tuple)
    kind: str = "CLOSED_PLANAR"


def star(center: tuple[float, float], radius: float, *, points: int = 5, turn: float = 0.1) -> np.ndarray:
    """Return the vertices of a star, (row, column); its inner corners lie at 0.45 of the radius."""
    angles = turn + np.pi * np.arange(2 * points) / points
    radii = np.where(np.arange(2 * points) % 2, 0.45 * radius, radius)
    return np.stack((center[0] + radii * np.sin(angles), center[1] + radii * np.cos(angles)), axis=1)


def circle(center: tuple[float, float], radius: float, *, points: int = 60) -> np.ndarray:
    """Return the vertices of a regular polygon, (row, column)."""
    angles = 2 * np.pi * (np.arange(points) + 0.3) / points
    return np.stack((center[0] + radius * np.sin(angles), center[1] + radius * np.cos(angles)), axis=1)


def rectangle(first: tuple[float, float], last: tuple[float, float]) -> np.ndarray:
    """Return the corners of a rectangle, (row, column)."""
    return np.asarray([first, (first[0], last[1]), last, (last[0], first[1])], dtype=float)


def keyhole(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Return one contour around a hole: the outer vertices, a channel of no width, and the inner ones in reverse."""
    return np.concatenate((outer, outer[:1], inner[:1], inner[:0:-1], inner[:1]))


def distance_to_path(polygon: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the distance of each voxel center (row, column) to the path of a closed polygon, in voxels."""
    centers = np.stack(np.indices(shape), axis=-1).reshape(-1, 2).astype(float)
    nearest = np.full(len(centers), np.inf)
    for start, end in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        step = end - start
        share = np.clip((centers - start) @ step / max(step @ step, 1e-30), 0, 1)
        nearest = np.minimum(nearest, np.linalg.norm(centers - start - share[:, None] * step, axis=1))
    return nearest.reshape(shape)


def structure_set(series: CtSeries, rois: Mapping[int, DrawnRoi]) -> Dataset:
    """Return an RT Structure Set drawn on a series, ROIs by number.

    A contour on a slice of the series references its image.
    """
    images = series.datasets()
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID, dataset.SOPInstanceUID = RTStructureSetStorage, uid(series.key, "rtstruct")
    dataset.StudyDate = dataset.StructureSetDate = "20200101"
    dataset.StudyTime = dataset.StructureSetTime = "120000"
    dataset.AccessionNumber = dataset.ReferringPhysicianName = dataset.StudyID = ""
    dataset.Modality, dataset.Manufacturer, dataset.OperatorsName = "RTSTRUCT", "Test", ""
    dataset.PatientName, dataset.PatientID = images[0].PatientName, images[0].PatientID
    dataset.PatientBirthDate, dataset.PatientSex = "19500101", "O"
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = images[0].StudyInstanceUID, uid(series.key, "rt-series")
    dataset.SeriesNumber, dataset.InstanceNumber = 3, 1
    dataset.FrameOfReferenceUID, dataset.PositionReferenceIndicator = images[0].FrameOfReferenceUID, ""
    dataset.StructureSetLabel = "Contours"
    dataset.ReferencedFrameOfReferenceSequence = DicomSequence([_frame_of_reference(images)])
    dataset.StructureSetROISequence = DicomSequence([_described(images[0], *pair) for pair in rois.items()])
    dataset.ROIContourSequence = DicomSequence([_drawn(series, images, *pair) for pair in rois.items()])
    dataset.RTROIObservationsSequence = DicomSequence([_observed(number) for number in rois])
    dataset.ApprovalStatus = "UNAPPROVED"
    return dataset


def _frame_of_reference(images: Sequence[Dataset]) -> Dataset:
    series, study, frame = Dataset(), Dataset(), Dataset()
    series.SeriesInstanceUID = images[0].SeriesInstanceUID
    series.ContourImageSequence = DicomSequence([_reference(image) for image in images])
    study.ReferencedSOPClassUID = "1.2.840.10008.3.1.2.3.1"
    study.ReferencedSOPInstanceUID = images[0].StudyInstanceUID
    study.RTReferencedSeriesSequence = DicomSequence([series])
    frame.FrameOfReferenceUID = images[0].FrameOfReferenceUID
    frame.RTReferencedStudySequence = DicomSequence([study])
    return frame


def _reference(image: Dataset) -> Dataset:
    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = image.SOPClassUID, image.SOPInstanceUID
    return item


def _described(image: Dataset, number: int, roi: DrawnRoi) -> Dataset:
    item = Dataset()
    item.ROINumber, item.ROIName = number, roi.name
    item.ReferencedFrameOfReferenceUID = image.FrameOfReferenceUID
    item.ROIGenerationAlgorithm = "MANUAL"
    return item


def _drawn(series: CtSeries, images: Sequence[Dataset], number: int, roi: DrawnRoi) -> Dataset:
    item = Dataset()
    item.ROIDisplayColor = [255, 0, 0]
    item.ReferencedROINumber = number
    contours = []
    for index, polygon in roi.contours:
        contour = Dataset()
        if index in range(len(images)):
            contour.ContourImageSequence = DicomSequence([_reference(images[int(index)])])
        contour.ContourGeometricType, contour.NumberOfContourPoints = roi.kind, len(polygon)
        contour.ContourData = coordinates(series, index, polygon)
        contours.append(contour)
    if contours:
        item.ContourSequence = DicomSequence(contours)
    return item


def coordinates(series: CtSeries, index: float | np.ndarray, polygon: np.ndarray) -> list[str]:
    """Return ContourData: LPS, mm, as decimal strings of at most 16 characters."""
    affine = series.affine_lps()
    places = np.column_stack((np.broadcast_to(index, len(polygon)), polygon))
    points = places @ affine[:3, :3].T + affine[:3, 3]
    return [f"{value:.8f}"[:16] for value in points.ravel()]


def _observed(number: int) -> Dataset:
    item = Dataset()
    item.ObservationNumber = item.ReferencedROINumber = number
    item.RTROIInterpretedType, item.ROIInterpreter = "ORGAN", ""
    return item
