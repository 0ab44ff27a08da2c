"""A synthetic patient as a CT scanner and a reading room would store it: a CT series, and its ground truth as DICOM SEG."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from medweave_steps.phantom.chest import ChestPhantom
from medweave_steps.phantom.dicom_bytes import SeriesEncoder, file_of
from medweave_steps.phantom.patient import Patient
from medweave_steps.runtime.imports import require

TransferSyntax = Literal["explicit", "rle", "jpeg2000"]

_CT_IMAGE_STORAGE = "1.2.840.10008.5.1.4.1.1.2"
_SYNTAXES = {
    "explicit": "1.2.840.10008.1.2.1",
    "rle": "1.2.840.10008.1.2.5",
    "jpeg2000": "1.2.840.10008.1.2.4.90",
}
_INTERCEPT_HU = -1024
_DATE, _TIME = "20260101", "120000"
_KERNELS = {"soft": "B30f", "medium": "B45f", "sharp": "B70f"}


def write_patient(folder: Path, patient: Patient, chest: ChestPhantom, syntax: TransferSyntax) -> None:
    """Write `series-0001/*.dcm` and `ground-truth/series-0001.dcm` (`series-h0001` and so on for held-out patients).

    Half of the scanners count their images from the head, and file names follow neither order nor position: a reader that
    trusts names or InstanceNumber gets these volumes wrong.
    """
    name = f"series-{'h' if patient.held_out else ''}{patient.ordinal:04d}"
    (folder / name).mkdir(parents=True)
    (folder / "ground-truth").mkdir(exist_ok=True)
    order = np.random.default_rng(patient.chest_seed).permutation(len(chest.hu_KJI))
    encoder = SeriesEncoder(_shared_header(patient, chest))
    images = []
    for k, number in enumerate(order):
        image = _image(encoder, patient, chest, k)
        _set_pixels(image, chest.hu_KJI[k], syntax)
        (folder / name / f"IM{number:05d}.dcm").write_bytes(encoder.file(image))
        images.append(image)
    if chest.label_KJI.any():
        truth = _segmentation(patient, chest, images)
        (folder / "ground-truth" / f"{name}.dcm").write_bytes(file_of(truth))


def _shared_header(patient: Patient, chest: ChestPhantom) -> Any:
    """Return the elements that all images of the series share."""
    pydicom = require("pydicom", extra="phantom")
    _, rows, columns = chest.hu_KJI.shape
    dx, dy, _ = chest.spacing_mm
    dataset = pydicom.Dataset()
    dataset.SOPClassUID = _CT_IMAGE_STORAGE
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    dataset.StudyDate = dataset.SeriesDate = dataset.AcquisitionDate = dataset.ContentDate = _DATE
    dataset.StudyTime = dataset.SeriesTime = dataset.AcquisitionTime = dataset.ContentTime = _TIME
    dataset.AccessionNumber = dataset.ReferringPhysicianName = dataset.PositionReferenceIndicator = ""
    dataset.Modality, dataset.Manufacturer = "CT", "medweave"
    dataset.ManufacturerModelName, dataset.SoftwareVersions, dataset.DeviceSerialNumber = "lung phantom", "1", "0"
    dataset.StudyDescription = "Synthetic chest CT"
    dataset.SeriesDescription = f"Synthetic, {chest.kernel} kernel"
    dataset.PatientName, dataset.PatientID = f"Phantom^{patient.ordinal:04d}", patient.patient_id
    dataset.PatientBirthDate, dataset.PatientSex = "", "O"
    dataset.BodyPartExamined, dataset.PatientPosition = "CHEST", "HFS"
    dataset.KVP, dataset.ConvolutionKernel = "120", _KERNELS[chest.kernel]
    # Three-millimetre slices at any distance: a reader that believes SliceThickness gets the spacing wrong.
    dataset.SliceThickness = "3"
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = patient.uid("study"), patient.uid("series")
    dataset.FrameOfReferenceUID = patient.uid("frame of reference")
    dataset.StudyID, dataset.SeriesNumber, dataset.AcquisitionNumber = "1", "2", "1"
    dataset.ImageOrientationPatient = ["1", "0", "0", "0", "1", "0"]
    dataset.PixelSpacing = [f"{dy:.4f}", f"{dx:.4f}"]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.Rows, dataset.Columns = rows, columns
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 1
    dataset.WindowCenter, dataset.WindowWidth = "-500", "1500"
    dataset.RescaleIntercept, dataset.RescaleSlope, dataset.RescaleType = str(_INTERCEPT_HU), "1", "HU"
    if chest.padding_value is not None:
        dataset.add_new(0x00280120, "SS", chest.padding_value - _INTERCEPT_HU)
    return dataset


def _image(encoder: SeriesEncoder, patient: Patient, chest: ChestPhantom, k: int) -> Any:
    """Return one CT image without its pixels."""
    x, y, z = chest.origin_mm
    height = f"{z + k * chest.spacing_mm[2]:.4f}"
    from_head = patient.ordinal % 2 == 0
    image = encoder.image()
    image.SOPInstanceUID = patient.uid("image", k)
    image.InstanceNumber = str(len(chest.hu_KJI) - k if from_head else k + 1)
    image.ImagePositionPatient = [f"{x:.4f}", f"{y:.4f}", height]
    image.SliceLocation = height
    return image


def _set_pixels(image: Any, hu_JI: npt.NDArray[np.int16], syntax: TransferSyntax) -> None:
    pydicom = require("pydicom", extra="phantom")
    image.PixelData = (hu_JI - np.int16(_INTERCEPT_HU)).astype("<i2").tobytes()
    image["PixelData"].VR = "OW"
    image.file_meta = pydicom.dataset.FileMetaDataset()
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
    image.file_meta.TransferSyntaxUID = _SYNTAXES["explicit"]
    if syntax != "explicit":
        image.compress(_SYNTAXES[syntax], generate_instance_uid=False)


def _segmentation(patient: Patient, chest: ChestPhantom, images: list[Any]) -> Any:
    """Return the nodules as one segment of a DICOM SEG that references every image."""
    hd = require("highdicom", extra="phantom")
    codes = require("pydicom.sr.codedict", extra="phantom").codes
    segment = hd.seg.SegmentDescription(
        segment_number=1,
        segment_label="nodule",
        segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
        segmented_property_type=codes.SCT.Nodule,
        algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=hd.AlgorithmIdentificationSequence(
            name="medweave phantom", version="1", family=codes.DCM.ArtificialIntelligence
        ),
        tracking_uid=patient.uid("tracking"),
        tracking_id="ground truth",
    )
    truth = hd.seg.Segmentation(
        source_images=images,
        pixel_array=chest.label_KJI,
        segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=[segment],
        series_instance_uid=patient.uid("truth series"),
        series_number=100,
        sop_instance_uid=patient.uid("truth"),
        instance_number=1,
        manufacturer="medweave",
        manufacturer_model_name="lung phantom",
        software_versions="1",
        device_serial_number="0",
        content_label="GROUND_TRUTH",
        content_description="Synthetic data, exact ground truth",
        series_description="Ground truth of synthetic data",
        omit_empty_frames=True,
    )
    truth.ContentDate = truth.SeriesDate = truth.InstanceCreationDate = _DATE
    truth.ContentTime = truth.SeriesTime = truth.InstanceCreationTime = _TIME
    # highdicom draws this UID and reads the clock; the same seed must write the same bytes.
    for contributor in truth.get("ContributingEquipmentSequence", []):
        contributor.ContributionDateTime = _DATE + _TIME
    for item in (*truth.DimensionOrganizationSequence, *truth.DimensionIndexSequence):
        item.DimensionOrganizationUID = patient.uid("truth dimensions")
    return truth
