"""A folder of synthetic chest X-rays: DICOM (DX) with the table of NIH ChestX-ray14."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.labels import CodedTerm
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.io.cohort.targets import NO_FINDING
from medweave_steps.phantom.dicom_bytes import file_of, set_pixels
from medweave_steps.phantom.dicom_header import common_header
from medweave_steps.phantom.patient import Patient
from medweave_steps.phantom.skin_cohort import write_csv
from medweave_steps.phantom.xray import FINDINGS, XraySpec, radiograph
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

IMAGE_FOLDER = "images"
TABLE_FILE = "Data_Entry_2017_v2020.csv"
# Private codes: a clinical one in a report about a synthetic image could be taken for a finding of a patient.
CLASSES = tuple(
    ImageClass(name=name, code=CodedTerm(value=name.upper(), scheme="99MEDWEAVE", meaning=f"Synthetic {name.lower()}"))
    for name in FINDINGS
)
_COLUMNS = (
    "Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender", "View Position",
    "OriginalImage[Width", "Height]", "OriginalImagePixelSpacing[x", "y]",
)  # fmt: skip
_DX_FOR_PRESENTATION = "1.2.840.10008.5.1.4.1.1.1.1"
_IMAGES_PER_PATIENT = (0.7, 0.2, 0.1)
_FINDING_SHARE = 0.25
_DETECTOR_MM = 360.0
_HIGHEST = 4095
_MONOCHROME1_EVERY = 3  # every third detector stores dense parts dark, as film does


@dataclass(frozen=True, slots=True, kw_only=True)
class _Xray:
    """One image of a patient."""

    patient: Patient
    patient_number: int
    follow_up: int
    findings: tuple[str, ...]
    age: int
    sex: str

    @property
    def file(self) -> str:
        return f"{self.patient_number:08d}_{self.follow_up:03d}.dcm"

    @property
    def instance_uid(self) -> str:
        return self.patient.uid("x-ray", self.follow_up)


def write_xrays(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the images of every patient and the table.

    Returns:
        the numbers of patients, of images, and of images by finding.
    """
    from medweave_steps.phantom.cohort import describe, patients_of

    require("pydicom", extra="phantom")
    images = _images(patients_of(config, prefix="xray"))
    size = config.image_size
    progress = context.progress(unit="image", total=len(images), is_quick=True)
    with atomic_directory(config.output) as folder:
        (folder / IMAGE_FOLDER).mkdir()
        for one in images:
            spec = XraySpec(patient_seed=one.patient.chest_seed, image=one.follow_up, findings=one.findings, size=size)
            (folder / IMAGE_FOLDER / one.file).write_bytes(_file(one, radiograph(spec)))
            progress.step(f"{one.patient.name}: {', '.join(one.findings) or NO_FINDING}")
            context.add_case(
                case_id_of_series(one.instance_uid), findings=list(one.findings), held_out=one.patient.held_out
            )
        write_csv(folder / TABLE_FILE, _COLUMNS, [_row(one, size) for one in images])
        held_out = [case_id_of_series(one.instance_uid) for one in images if one.patient.held_out]
        describe(folder, config, held_out, classes=CLASSES)
    by_finding = {name: sum(name in one.findings for one in images) for name in FINDINGS}
    num_patients = len({one.patient for one in images})
    return {"patients": num_patients, "images": len(images), "images_by_finding": by_finding, "synthetic": True}


def _images(patients: Sequence[Patient]) -> list[_Xray]:
    images = []
    for number, patient in enumerate(patients, start=1):
        rng = np.random.default_rng(patient.chest_seed)
        age, sex = int(rng.integers(20, 90)), str(rng.choice(["M", "F"]))
        for follow_up in range(int(rng.choice(3, p=_IMAGES_PER_PATIENT)) + 1):
            findings = tuple(name for name in FINDINGS if rng.random() < _FINDING_SHARE)
            images.append(
                _Xray(patient=patient, patient_number=number, follow_up=follow_up, findings=findings, age=age, sex=sex)
            )
    return images


def _row(one: _Xray, size: int) -> tuple[str, ...]:
    spacing = f"{_DETECTOR_MM / size:g}"
    findings = "|".join(one.findings) or NO_FINDING
    return (
        one.file, findings, str(one.follow_up), str(one.patient_number), str(one.age), one.sex, "PA",
        str(size), str(size), spacing, spacing,
    )  # fmt: skip


def _file(one: _Xray, dense: npt.NDArray[np.uint16]) -> bytes:
    """Return a DX image for presentation: 12 bits, with a window and the spacing at the detector."""
    size = len(dense)
    is_dark = one.patient_number % _MONOCHROME1_EVERY == 0
    dataset = common_header(one.patient)
    for keyword in ("ImageOrientationPatient", "PatientPosition", "PositionReferenceIndicator"):
        delattr(dataset, keyword)
    dataset.PatientID, dataset.PatientSex, dataset.PatientAge = str(one.patient_number), one.sex, f"{one.age:03d}Y"
    dataset.SOPClassUID, dataset.SOPInstanceUID = _DX_FOR_PRESENTATION, one.instance_uid
    dataset.StudyInstanceUID = one.patient.uid("study", one.follow_up)
    dataset.SeriesInstanceUID = one.patient.uid("series", one.follow_up)
    dataset.SeriesNumber, dataset.InstanceNumber, dataset.Laterality = "1", "1", ""
    dataset.ImageType = ["ORIGINAL", "PRIMARY", ""]
    dataset.Modality, dataset.PresentationIntentType = "DX", "FOR PRESENTATION"
    dataset.ManufacturerModelName, dataset.StudyDescription = "chest phantom", "Synthetic chest X-ray"
    dataset.BodyPartExamined, dataset.ViewPosition, dataset.ImageLaterality = "CHEST", "PA", "U"
    dataset.PatientOrientation = ["L", "F"]
    dataset.DetectorType = "DIRECT"
    dataset.ImagerPixelSpacing = [f"{_DETECTOR_MM / size:.5f}"] * 2
    dataset.Rows = dataset.Columns = size
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 12, 11, 0
    dataset.PixelIntensityRelationship, dataset.PixelIntensityRelationshipSign = "LOG", 1 if is_dark else -1
    dataset.PhotometricInterpretation = "MONOCHROME1" if is_dark else "MONOCHROME2"
    dataset.PresentationLUTShape = "INVERSE" if is_dark else "IDENTITY"
    dataset.RescaleIntercept, dataset.RescaleSlope, dataset.RescaleType = "0", "1", "US"
    dataset.WindowCenter, dataset.WindowWidth = ("2148" if is_dark else "1948"), "3800"
    dataset.BurnedInAnnotation, dataset.LossyImageCompression = "NO", "00"
    stored = _HIGHEST - dense if is_dark else dense
    set_pixels(dataset, stored.astype(np.int16), "explicit")
    return file_of(dataset)
