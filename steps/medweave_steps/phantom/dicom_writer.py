"""A synthetic patient as a CT scanner and a reading room would store it: a CT series, and its ground truth as DICOM SEG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.labels import LUNG_NODULE, Label
from medweave_steps.phantom.chest import ChestPhantom
from medweave_steps.phantom.dicom_bytes import SeriesEncoder, TransferSyntax, file_of, set_pixels
from medweave_steps.phantom.dicom_header import common_header
from medweave_steps.phantom.ground_truth import ground_truth, segment
from medweave_steps.phantom.patient import Patient

_CT_IMAGE_STORAGE = "1.2.840.10008.5.1.4.1.1.2"
_INTERCEPT_HU = -1024
# Its segment names no anatomic region: not every reading room does.
_NODULE = Label(value=1, name=LUNG_NODULE.name, category=LUNG_NODULE.category, type=LUNG_NODULE.type)
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
        set_pixels(image, chest.hu_KJI[k] - np.int16(_INTERCEPT_HU), syntax)
        (folder / name / f"IM{number:05d}.dcm").write_bytes(encoder.file(image))
        images.append(image)
    if chest.label_KJI.any():
        truth = _segmentation(patient, chest, images)
        (folder / "ground-truth" / f"{name}.dcm").write_bytes(file_of(truth))


def _shared_header(patient: Patient, chest: ChestPhantom) -> Any:
    """Return the elements that all images of the series share."""
    _, rows, columns = chest.hu_KJI.shape
    dx, dy, _ = chest.spacing_mm
    dataset = common_header(patient)
    dataset.SOPClassUID = _CT_IMAGE_STORAGE
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    dataset.Modality, dataset.ManufacturerModelName = "CT", "lung phantom"
    dataset.StudyDescription = "Synthetic chest CT"
    dataset.SeriesDescription = f"Synthetic, {chest.kernel} kernel"
    dataset.BodyPartExamined = "CHEST"
    dataset.KVP, dataset.ConvolutionKernel = "120", _KERNELS[chest.kernel]
    # Three-millimetre slices at any distance: a reader that believes SliceThickness gets the spacing wrong.
    dataset.SliceThickness = "3"
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = patient.uid("study"), patient.uid("series")
    dataset.FrameOfReferenceUID = patient.uid("frame of reference")
    dataset.SeriesNumber = "2"
    dataset.PixelSpacing = [f"{dy:.4f}", f"{dx:.4f}"]
    dataset.Rows, dataset.Columns, dataset.PixelRepresentation = rows, columns, 1
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


def _segmentation(patient: Patient, chest: ChestPhantom, images: list[Any]) -> Any:
    """Return the nodules as one segment of a DICOM SEG that references every image."""
    nodules = segment(_NODULE, tracking_uid=patient.uid("tracking"), tracking_id="ground truth")
    uids = {role: patient.uid(role) for role in ("truth series", "truth", "truth dimensions")}
    return ground_truth(images, chest.label_KJI, [nodules], uids, model="lung phantom")
