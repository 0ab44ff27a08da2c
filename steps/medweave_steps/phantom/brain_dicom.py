"""A synthetic brain as a scanner would store it: one study with four MR series, and its ground truth as DICOM SEG.

The attributes distinguish the contrasts as in hospitals; times (ms) are typical of 3 T protocols for gliomas (Ellingson et al.
2015, Neuro-Oncology 17:1188). Codes of the labels: DICOM PS3.16, CID 7169 "Brain Lesion Segmentation Type Without Necrosis", which
names the non-enhancing and the enhancing part; category from CID 7150.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.labels import CodedTerm, Label
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.phantom.brain import CONTRASTS, CORE, LABELS, OEDEMA, RIM, BrainPhantom
from medweave_steps.phantom.dicom_bytes import SeriesEncoder, TransferSyntax, file_of, set_pixels
from medweave_steps.phantom.dicom_header import common_header
from medweave_steps.phantom.ground_truth import ground_truth, segment
from medweave_steps.phantom.patient import Patient

_ABNORMAL = CodedTerm(value="49755003", scheme="SCT", meaning="Morphologically Abnormal Structure")
_BRAIN = CodedTerm(value="12738006", scheme="SCT", meaning="Brain")
_TYPES = {
    OEDEMA: CodedTerm(value="79654002", scheme="SCT", meaning="Edema"),
    CORE: CodedTerm(value="C81175", scheme="NCIt", meaning="Non-Enhancing Lesion"),
    RIM: CodedTerm(value="C113842", scheme="NCIt", meaning="Enhancing Lesion"),
}
CODED_LABELS = tuple(
    Label(value=value, name=LABELS[str(value)], category=_ABNORMAL, type=type_, anatomy=_BRAIN)
    for value, type_ in _TYPES.items()
)
"""Labels of Task01 with their coded terms."""

_MR_IMAGE_STORAGE = "1.2.840.10008.5.1.4.1.1.4"
_SPIN_ECHO: dict[str, Any] = {"ScanningSequence": "SE", "SequenceVariant": "NONE", "MRAcquisitionType": "3D"}
_SEQUENCES: Mapping[str, Mapping[str, Any]] = {
    "FLAIR": {
        "ScanningSequence": ["SE", "IR"], "SequenceVariant": "SK", "MRAcquisitionType": "3D",
        "RepetitionTime": "9000", "EchoTime": "125", "InversionTime": "2500", "EchoTrainLength": "120",
    },
    "T1w": _SPIN_ECHO | {"RepetitionTime": "600", "EchoTime": "11", "EchoTrainLength": "1"},
    "T1gd": _SPIN_ECHO | {
        "RepetitionTime": "600", "EchoTime": "11", "EchoTrainLength": "1",
        "ContrastBolusAgent": "Gadolinium", "ContrastBolusRoute": "INTRAVENOUS",
    },
    "T2w": {
        "ScanningSequence": "SE", "SequenceVariant": "SK", "MRAcquisitionType": "2D",
        "RepetitionTime": "4500", "EchoTime": "100", "EchoTrainLength": "15",
    },
}  # fmt: skip
"""Acquisition attributes by contrast."""


def study_case_id(patient: Patient) -> str:
    """Return the case id of a study: that of its first series, which the ground truth references."""
    return case_id_of_series(_series_uid(patient, CONTRASTS[0]))


def write_study(folder: Path, patient: Patient, brain: BrainPhantom, syntax: TransferSyntax) -> None:
    """Write `study-0001/<contrast>/*.dcm` and `ground-truth/study-0001.dcm` (`study-h0001` and so on for held-out patients).

    The files of a series follow neither position nor InstanceNumber, as in the chest phantom.
    """
    name = f"study-{'h' if patient.held_out else ''}{patient.ordinal:04d}"
    (folder / "ground-truth").mkdir(parents=True, exist_ok=True)
    first: list[Any] = []
    for channel, contrast in enumerate(CONTRASTS):
        series = folder / name / contrast.lower()
        series.mkdir(parents=True)
        encoder = SeriesEncoder(_shared_header(patient, brain, contrast))
        order = np.random.default_rng([patient.chest_seed, channel]).permutation(brain.label_IJK.shape[2])
        for k, number in enumerate(order):
            image = _image(encoder, patient, brain, contrast, k)
            # Rows of an axial slice run along J, columns along I.
            set_pixels(image, brain.image_CIJK[channel, :, :, k].T, syntax)
            (series / f"IM{number:05d}.dcm").write_bytes(encoder.file(image))
            if channel == 0:
                first.append(image)
    (folder / "ground-truth" / f"{name}.dcm").write_bytes(file_of(_segmentation(patient, brain, first)))


def _series_uid(patient: Patient, contrast: str) -> str:
    return patient.uid("brain", contrast, "series")


def _shared_header(patient: Patient, brain: BrainPhantom, contrast: str) -> Any:
    """Return the elements that all images of the series share."""
    columns, rows, _ = brain.label_IJK.shape
    size = f"{brain.spacing_mm:.4f}"
    dataset = common_header(patient)
    dataset.SOPClassUID = _MR_IMAGE_STORAGE
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "OTHER"]
    dataset.Modality, dataset.ManufacturerModelName = "MR", "brain phantom"
    dataset.StudyDescription = "Synthetic brain MR"
    dataset.SeriesDescription = f"Synthetic {contrast}"
    dataset.BodyPartExamined = "BRAIN"
    dataset.MagneticFieldStrength, dataset.ScanOptions = "3", ""
    dataset.SliceThickness = dataset.SpacingBetweenSlices = size
    for keyword, value in _SEQUENCES[contrast].items():
        setattr(dataset, keyword, value)
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = patient.uid("brain", "study"), _series_uid(patient, contrast)
    dataset.FrameOfReferenceUID = patient.uid("brain", "frame of reference")
    dataset.SeriesNumber = str(CONTRASTS.index(contrast) + 2)
    dataset.PixelSpacing = [size, size]
    dataset.RecognizableVisualFeatures = "NO"  # skull-stripped
    dataset.Rows, dataset.Columns, dataset.PixelRepresentation = rows, columns, 0
    return dataset


def _image(encoder: SeriesEncoder, patient: Patient, brain: BrainPhantom, contrast: str, k: int) -> Any:
    """Return one MR image without its pixels; LPS positions of the grid of Task01."""
    _, rows, slices = brain.label_IJK.shape
    height = f"{k * brain.spacing_mm:.4f}"
    from_head = patient.ordinal % 2 == 0
    image = encoder.image()
    image.SOPInstanceUID = patient.uid("brain", contrast, "image", k)
    image.InstanceNumber = str(slices - k if from_head else k + 1)
    image.ImagePositionPatient = ["0", f"{-(rows - 1) * brain.spacing_mm:.4f}", height]
    image.SliceLocation = height
    return image


def _segmentation(patient: Patient, brain: BrainPhantom, images: list[Any]) -> Any:
    """Return the parts of the tumor as segments; the enhancing part is declared even where a tumor has none."""
    segments = [
        segment(
            label,
            tracking_uid=patient.uid("brain", "tracking", label.value),
            tracking_id=f"ground truth, {label.name}",
        )
        for label in CODED_LABELS
    ]
    uids = {role: patient.uid("brain", role) for role in ("truth series", "truth", "truth dimensions")}
    label_KJI = np.ascontiguousarray(brain.label_IJK.transpose(2, 1, 0))
    return ground_truth(images, label_KJI, segments, uids, model="brain phantom")
