"""The header elements that the images of every phantom have."""

from __future__ import annotations

from typing import Any

from medweave_steps.phantom.ground_truth import DATE, TIME
from medweave_steps.phantom.patient import Patient
from medweave_steps.runtime.imports import require


def common_header(patient: Patient) -> Any:
    """Return a pydicom Dataset with the elements that do not depend on modality and scan: 16-bit grayscale axial images."""
    dataset = require("pydicom", extra="phantom").Dataset()
    dataset.StudyDate = dataset.SeriesDate = dataset.AcquisitionDate = dataset.ContentDate = DATE
    dataset.StudyTime = dataset.SeriesTime = dataset.AcquisitionTime = dataset.ContentTime = TIME
    dataset.AccessionNumber = dataset.ReferringPhysicianName = dataset.PositionReferenceIndicator = ""
    dataset.Manufacturer, dataset.SoftwareVersions, dataset.DeviceSerialNumber = "medweave", "1", "0"
    dataset.PatientName, dataset.PatientID = f"Phantom^{patient.ordinal:04d}", patient.patient_id
    dataset.PatientBirthDate, dataset.PatientSex, dataset.PatientPosition = "", "O", "HFS"
    dataset.StudyID, dataset.AcquisitionNumber = "1", "1"
    dataset.ImageOrientationPatient = ["1", "0", "0", "0", "1", "0"]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    return dataset
