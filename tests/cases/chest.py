"""A small chest with one nodule as DICOM and NIfTI, from which the imaging cases are made."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, EnhancedCTImageStorage, ExplicitVRLittleEndian

NUM_SLICES = 24
SIDE = 96
AIR_HU, LUNG_HU, TISSUE_HU, NODULE_HU = -1000.0, -850.0, 40.0, 50.0


def chest_hu(num_slices: int = NUM_SLICES, side: int = SIDE, *, has_nodule: bool = True) -> np.ndarray:
    """Return a trunk with two lungs and, on request, one nodule: float32 HU of shape (slice, row, column)."""
    z, y, x = np.mgrid[0:num_slices, 0:side, 0:side].astype(np.float32)
    hu = np.full((num_slices, side, side), AIR_HU, np.float32)
    hu[((x - side / 2) / (side * 0.42)) ** 2 + ((y - side / 2) / (side * 0.30)) ** 2 < 1] = TISSUE_HU
    for sign in (-1, 1):
        across = (x - side / 2 - sign * side * 0.19) / (side * 0.15)
        lung = across**2 + ((y - side / 2) / (side * 0.22)) ** 2 + ((z - num_slices / 2) / (num_slices * 0.42)) ** 2 < 1
        hu[lung] = LUNG_HU
    if has_nodule:
        hu[nodule_mask(num_slices, side)] = NODULE_HU
    return hu + np.random.default_rng(0).normal(0, 12, hu.shape).astype(np.float32)


def nodule_mask(num_slices: int = NUM_SLICES, side: int = SIDE) -> np.ndarray:
    """Return where the nodule of `chest_hu` is: bool of shape (slice, row, column)."""
    z, y, x = np.mgrid[0:num_slices, 0:side, 0:side].astype(np.float32)
    return (x - side * 0.3) ** 2 + (y - side * 0.48) ** 2 + ((z - num_slices / 2) * 1.5) ** 2 < (side * 0.035) ** 2


def ct_slice(
    hu: np.ndarray,
    z_mm: float,
    instance_number: int,
    *,
    series_uid: str = "1.2.826.0.1.2",
    patient_id: str = "P1",
    pixel_mm: float = 3.6,
    slice_mm: float = 8.0,
) -> Dataset:
    """Return one axial CT instance, stored unsigned with intercept -1024.

    Args:
        hu: float HU of shape (row, column).
        z_mm: position of the slice along the patient's axis, mm.
    """
    dataset, meta = Dataset(), FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = dataset.SOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = f"{series_uid}.{instance_number}"
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = f"{series_uid}.900", series_uid
    dataset.FrameOfReferenceUID = f"{series_uid}.901"
    dataset.Modality, dataset.ImageType = "CT", ["ORIGINAL", "PRIMARY", "AXIAL"]
    dataset.PatientID, dataset.PatientName, dataset.InstanceNumber = patient_id, "Doe^Jane", instance_number
    dataset.ImagePositionPatient, dataset.ImageOrientationPatient = [-170, -170, z_mm], [1, 0, 0, 0, 1, 0]
    dataset.PixelSpacing, dataset.SliceThickness = [pixel_mm, pixel_mm], slice_mm
    dataset.Rows, dataset.Columns = hu.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
    dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = 1, -1024, "HU"
    dataset.PixelData = np.clip(np.rint(hu + 1024), 0, 65535).astype("<u2").tobytes()
    dataset.file_meta = meta
    return dataset


def ct_series(hu: np.ndarray | None = None, **options: object) -> list[Dataset]:
    """Return the slices of a chest, 8 mm apart; `options` are those of `ct_slice`."""
    volume = chest_hu() if hu is None else hu
    slice_mm = float(options.get("slice_mm", 8.0))  # type: ignore[arg-type]
    return [ct_slice(plane, index * slice_mm, index + 1, **options) for index, plane in enumerate(volume)]  # type: ignore[arg-type]


def save_series(folder: Path, datasets: list[Dataset], *, prefix: str = "") -> Path:
    """Write the instances as `<prefix>000.dcm`, … and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, dataset in enumerate(datasets):
        dataset.save_as(folder / f"{prefix}{index:03d}.dcm", enforce_file_format=True)
    return folder


def chest_RAS(seed: int = 0, shape: tuple[int, int, int] = (96, 96, 24)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a chest on an RAS grid: int16 HU, bool lungs without the nodule, bool nodule."""
    x, y, z = np.mgrid[0 : shape[0], 0 : shape[1], 0 : shape[2]].astype(np.float32)
    size_x, size_y, size_z = shape
    hu = np.full(shape, AIR_HU, np.float32)
    hu[((x - size_x / 2) / (size_x * 0.42)) ** 2 + ((y - size_y / 2) / (size_y * 0.30)) ** 2 < 1] = TISSUE_HU
    lungs = np.zeros(shape, bool)
    for sign in (-1, 1):
        across = (x - size_x / 2 - sign * size_x * 0.19) / (size_x * 0.15)
        along = ((y - size_y / 2) / (size_y * 0.22)) ** 2 + ((z - size_z / 2) / (size_z * 0.42)) ** 2
        lungs |= across**2 + along < 1
    hu[lungs] = LUNG_HU
    nodule = (x - size_x * 0.3) ** 2 + (y - size_y * 0.48) ** 2 + ((z - size_z / 2) * 1.5) ** 2 < (size_x * 0.035) ** 2
    hu[nodule] = NODULE_HU
    noise = np.random.default_rng(seed).normal(0, 12, shape)
    return np.rint(hu + noise).astype(np.int16), lungs & ~nodule, nodule


CHEST_AFFINE = np.array([[-3.6, 0, 0, 170], [0, -3.6, 0, 170], [0, 0, 8, 0], [0, 0, 0, 1.0]])


def save_nifti(path: Path, volume: np.ndarray, affine: np.ndarray = CHEST_AFFINE) -> Path:
    """Write a NIfTI file with units of mm and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(volume, affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)
    return path


def enhanced_ct(hu: np.ndarray | None = None, *, slice_mm: float = 8.0) -> Dataset:
    """Return the chest as one Enhanced CT object with a functional group for each frame."""
    volume = chest_hu() if hu is None else hu
    dataset = ct_slice(volume[0], 0.0, 1)
    for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "RescaleType"):
        delattr(dataset, keyword)
    del dataset.RescaleSlope, dataset.RescaleIntercept
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = EnhancedCTImageStorage
    dataset.NumberOfFrames = len(volume)
    dataset.SharedFunctionalGroupsSequence = _item(
        PlaneOrientationSequence=_item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0]),
        PixelMeasuresSequence=_item(PixelSpacing=[3.6, 3.6], SliceThickness=slice_mm),
        PixelValueTransformationSequence=_item(RescaleSlope=1, RescaleIntercept=-1024, RescaleType="HU"),
    )
    dataset.PerFrameFunctionalGroupsSequence = [
        _item(
            PlanePositionSequence=_item(ImagePositionPatient=[-170, -170, slice_mm * index]),
            FrameContentSequence=_item(DimensionIndexValues=[1, index + 1]),
            CTImageFrameTypeSequence=_item(FrameType=["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]),
        )[0]
        for index in range(len(volume))
    ]
    dataset.PixelData = np.clip(np.rint(volume + 1024), 0, 65535).astype("<u2").tobytes()
    return dataset


def _item(**attributes: object) -> list[Dataset]:
    item = Dataset()
    for keyword, value in attributes.items():
        setattr(item, keyword, value)
    return [item]
