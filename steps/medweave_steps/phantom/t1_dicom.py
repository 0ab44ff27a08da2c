"""A synthetic T1-weighted head as a scanner would store it: one MR series, and its structures as DICOM SEG.

Times (ms) and flip angle are those of an MP-RAGE protocol at 3 T (Jack et al. 2008, J Magn Reson Imaging 27:685). Codes of the
structures: DICOM PS3.16, CID 7140 "Brain Structure for Volumetric Measurement", and SNOMED CT for all ventricles together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import CodedTerm, Label
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.phantom.dicom_bytes import SeriesEncoder, TransferSyntax, file_of, set_pixels
from medweave_steps.phantom.dicom_header import common_header
from medweave_steps.phantom.ground_truth import ground_truth, segment
from medweave_steps.phantom.t1 import HIPPOCAMPUS, LABELS, VENTRICLE, T1Phantom
from medweave_steps.phantom.t1_subjects import Subject

_STRUCTURE = CodedTerm(value="91723000", scheme="SCT", meaning="Anatomical Structure")
_TYPES = {
    VENTRICLE: CodedTerm(value="35764002", scheme="SCT", meaning="Brain ventricle"),
    HIPPOCAMPUS: CodedTerm(value="5366008", scheme="SCT", meaning="Hippocampus"),
}
CODED_LABELS = tuple(
    Label(value=value, name=name, category=_STRUCTURE, type=_TYPES[value]) for value, name in LABELS.items()
)
_MR_IMAGE_STORAGE = "1.2.840.10008.5.1.4.1.1.4"
_SEQUENCE: Mapping[str, Any] = {
    "ScanningSequence": ["GR", "IR"], "SequenceVariant": ["SP", "MP"], "ScanOptions": "", "MRAcquisitionType": "3D",
    "RepetitionTime": "2300", "EchoTime": "3", "InversionTime": "900", "EchoTrainLength": "1", "FlipAngle": "9",
    "MagneticFieldStrength": "3",
}  # fmt: skip


def head_case_id(subject: Subject) -> str:
    """Return the case id of a subject's series."""
    return case_id_of_series(subject.patient.uid("t1", "series"))


def write_series(folder: Path, subject: Subject, head: T1Phantom, syntax: TransferSyntax) -> None:
    """Write `sub-0001/*.dcm` and `ground-truth/sub-0001.dcm`; file names follow neither position nor InstanceNumber."""
    series = folder / subject.label
    series.mkdir()
    (folder / "ground-truth").mkdir(exist_ok=True)
    image_KJI = as_slices(head.image_IJK)
    encoder = SeriesEncoder(_shared_header(subject, head))
    images = []
    for k, number in enumerate(np.random.default_rng(subject.patient.chest_seed).permutation(len(image_KJI))):
        image = _image(encoder, subject, head, k)
        set_pixels(image, image_KJI[k], syntax)
        (series / f"IM{number:05d}.dcm").write_bytes(encoder.file(image))
        images.append(image)
    truth = _segmentation(subject, head, images)
    (folder / "ground-truth" / f"{subject.label}.dcm").write_bytes(file_of(truth))


def as_slices(array_IJK: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return axial slices whose rows run to the back and columns to the left, as DICOM stores them, from RAS axes."""
    return np.ascontiguousarray(array_IJK[::-1, ::-1].transpose(2, 1, 0))


def _shared_header(subject: Subject, head: T1Phantom) -> Any:
    """Return the elements that all images of the series share."""
    columns, rows, _ = head.image_IJK.shape
    size, patient = f"{head.spacing_mm:.4f}", subject.patient
    dataset = common_header(patient)
    dataset.PatientSex, dataset.PatientAge = subject.sex, f"{int(subject.age):03d}Y"
    dataset.SOPClassUID = _MR_IMAGE_STORAGE
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "OTHER"]
    dataset.Modality, dataset.ManufacturerModelName = "MR", "head phantom"
    dataset.StudyDescription, dataset.SeriesDescription = "Synthetic head MR", "Synthetic T1w"
    dataset.BodyPartExamined = "HEAD"
    dataset.SliceThickness = dataset.SpacingBetweenSlices = size
    for keyword, value in _SEQUENCE.items():
        setattr(dataset, keyword, value)
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = patient.uid("t1", "study"), patient.uid("t1", "series")
    dataset.FrameOfReferenceUID = patient.uid("t1", "frame of reference")
    dataset.SeriesNumber, dataset.PixelSpacing = "2", [size, size]
    dataset.Rows, dataset.Columns, dataset.PixelRepresentation = rows, columns, 0
    return dataset


def _image(encoder: SeriesEncoder, subject: Subject, head: T1Phantom, k: int) -> Any:
    """Return one MR image without its pixels, at the position (LPS) of the NIfTI volume of the same subject."""
    x, y, z = (-(side - 1) / 2 * head.spacing_mm for side in head.image_IJK.shape)
    image = encoder.image()
    image.SOPInstanceUID = subject.patient.uid("t1", "image", k)
    image.InstanceNumber = str(k + 1)
    image.ImagePositionPatient = [f"{x:.4f}", f"{y:.4f}", f"{z + k * head.spacing_mm:.4f}"]
    image.SliceLocation = f"{z + k * head.spacing_mm:.4f}"
    return image


def _segmentation(subject: Subject, head: T1Phantom, images: list[Any]) -> Any:
    uid = subject.patient.uid
    segments = [
        segment(label, tracking_uid=uid("t1", "tracking", label.value), tracking_id=f"ground truth, {label.name}")
        for label in CODED_LABELS
    ]
    uids = {role: uid("t1", role) for role in ("truth series", "truth", "truth dimensions")}
    return ground_truth(images, as_slices(head.label_IJK), segments, uids, model="head phantom")
