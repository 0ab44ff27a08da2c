"""`deidentify` on MR and PET: what readers need to tell contrasts apart and to compute SUV stays, and names do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as DicomSequence

from medweave_steps.deidentify.deface import Defacer, MaskOfFrame
from medweave_steps.deidentify.identifiers import Identifiers
from medweave_steps.deidentify.scan_words import scan_words
from medweave_steps.phantom.brain import CONTRASTS, BrainSpec, generate_brain
from medweave_steps.phantom.brain_dicom import write_study
from medweave_steps.phantom.patient import Patient
from support.dicom_builder import CtSeries, write_datasets
from support.identified import deidentify, way_back
from support.validators import dciodvfy_errors

PET_IMAGE = "1.2.840.10008.5.1.4.1.1.128"
MR_FILES = ("", "_RLE", "_bigendian", "_implicit", "_jp2klossless", "_jpeg_ls_lossless")


def written(folder: Path) -> list[Dataset]:
    return [pydicom.dcmread(path) for path in sorted((folder.parent / "out").rglob("*.dcm"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ax T1_post GAD", "Ax T1 post GAD"),
        ("t2_flair_tra_3D for Dr. Grimshaw", "t2 flair tra 3D"),
        ("DWI b1000 ADC (Quillfeather, 04/03/2019)", "DWI b1000 ADC"),
        ("MR 774411 1948 B1948", ""),
        ("Heart of Liver, Neck", "Heart Liver Neck"),
        ("T1+C SE", "T1 +C SE"),
        ("T2* C+", "T2* C+"),
        ("T1 w/o Gd, T1 W GD", "T1 WO Gd T1 W GD"),
        ("Quillfeather", ""),
        ("", ""),
    ],
)
def test_only_words_about_the_scan_stay_in_a_description(text: str, expected: str) -> None:
    assert scan_words(text, Identifiers(())) == expected


def test_a_word_that_is_the_name_of_the_patient_does_not_stay() -> None:
    assert scan_words("Ax T2 Head", Identifiers(["Head"])) == "Ax T2"


def test_a_study_of_four_contrasts_keeps_the_attributes_that_distinguish_them(tmp_path: Path) -> None:
    patient, folder = Patient(seed=1, ordinal=1, held_out=False), tmp_path / "cohort"
    write_study(folder, patient, generate_brain(BrainSpec(seed=patient.chest_seed, matrix_size=16)), "explicit")
    assert deidentify(folder) == 0
    images = [image for image in written(folder) if image.Modality == "MR"]
    assert (
        len({image.FrameOfReferenceUID for image in images}) == len({image.StudyInstanceUID for image in images}) == 1
    )
    retained = (
        "Modality", "SeriesDescription", "ScanningSequence", "SequenceVariant", "MRAcquisitionType", "MagneticFieldStrength",
        "RepetitionTime", "EchoTime", "EchoTrainLength", "InversionTime", "ImageType", "BodyPartExamined",
        "ContrastBolusAgent", "ContrastBolusRoute", "SeriesNumber", "RecognizableVisualFeatures",
    )  # fmt: skip
    for contrast in CONTRASTS:
        source = pydicom.dcmread(next((folder / "study-0001" / contrast.lower()).iterdir()))
        same = [image for image in images if image.SeriesDescription == source.SeriesDescription]
        assert len(same) * len(CONTRASTS) == len(images)
        for keyword in retained:
            assert same[0].get(keyword) == source.get(keyword), (contrast, keyword)
    card = json.loads((tmp_path / "out" / "cohort_card.json").read_text())
    assert card["data_class"] == "de-identified", "the header says that no face can be recognized"
    assert dciodvfy_errors(next(path for path in (tmp_path / "out").rglob("*.dcm"))) == []


@pytest.mark.parametrize("agent", ["Gadavist 7.5 mL, Quillfeather", "gd", "NONE", "from Grimshaw's stock"])
def test_the_contrast_agent_stays_without_other_words(tmp_path: Path, agent: str) -> None:
    dataset = pydicom.dcmread(get_testdata_file("MR_small.dcm"))
    dataset.ContrastBolusAgent, dataset.SeriesDescription = agent, "T1 for Quillfeather"
    write_datasets([dataset], tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 0
    (new,) = written(tmp_path / "cohort")
    expected = {"Gadavist 7.5 mL, Quillfeather": "Gadavist", "from Grimshaw's stock": "REMOVED"}
    assert new.ContrastBolusAgent == expected.get(agent, agent)
    assert new.SeriesDescription == "T1"
    assert "113105" in {item.CodeValue for item in new.DeidentificationMethodCodeSequence}


@pytest.mark.parametrize("name", MR_FILES)
def test_real_mr_files_keep_pixels_and_acquisition(tmp_path: Path, name: str) -> None:
    source = pydicom.dcmread(get_testdata_file(f"MR_small{name}.dcm"))
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "a.dcm").write_bytes(Path(get_testdata_file(f"MR_small{name}.dcm")).read_bytes())
    assert deidentify(tmp_path / "cohort") == 0
    (new,) = written(tmp_path / "cohort")
    np.testing.assert_array_equal(new.pixel_array, source.pixel_array)
    for keyword in (
        "Modality",
        "ScanningSequence",
        "EchoTime",
        "RepetitionTime",
        "ImagePositionPatient",
        "PixelSpacing",
    ):
        assert new.get(keyword) == source.get(keyword), keyword
    assert new.PatientName != source.PatientName
    assert json.loads((tmp_path / "out" / "cohort_card.json").read_text())["data_class"] == "identified"


@pytest.mark.parametrize("name", MR_FILES)
def test_a_mask_applies_to_real_mr_files_of_every_encoding(tmp_path: Path, name: str) -> None:
    source = pydicom.dcmread(get_testdata_file(f"MR_small{name}.dcm"))
    dataset = pydicom.dcmread(get_testdata_file(f"MR_small{name}.dcm"))
    mask = np.zeros((64, 64, 3), np.uint8)
    mask[10:40, 20:50, 1] = 1  # column, row, slice; the image is the middle slice
    orientation = np.array(dataset.ImageOrientationPatient, float)
    normal = np.cross(orientation[:3], orientation[3:])
    affine = np.eye(4)
    affine[:3, 0] = orientation[:3] * dataset.PixelSpacing[1]
    affine[:3, 1] = orientation[3:] * dataset.PixelSpacing[0]
    affine[:3, 2], affine[:3, 3] = normal, np.array(dataset.ImagePositionPatient, float) - normal
    nibabel.save(nibabel.Nifti1Image(mask, np.diag([-1, -1, 1, 1]) @ affine), tmp_path / "mask.nii.gz")
    of_frame = MaskOfFrame(
        path=tmp_path / "mask.nii.gz", frame_of_reference=dataset.get("FrameOfReferenceUID", ""), ordinal=2
    )
    syntax = Defacer([of_frame], 1).deface(dataset, str(dataset.file_meta.TransferSyntaxUID), "undeclared")
    assert syntax is not None
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(tmp_path / "new.dcm", enforce_file_format=True)
    new = pydicom.dcmread(tmp_path / "new.dcm").pixel_array
    keep = mask[:, :, 1].T > 0
    np.testing.assert_array_equal(new[keep], source.pixel_array[keep])
    assert len(set(new[~keep])) == 1
    assert new[~keep][0] <= 0, "padding or no signal"


def pet_series(**more: Any) -> list[Dataset]:
    """Return a PET series in Bq/mL with what body-weight SUV needs."""
    datasets = CtSeries(key="pet", intercepts=0.0, slopes=(1.5, 2.5, 1.5, 2.5, 1.5, 2.5)).datasets()
    for dataset in datasets:
        dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = PET_IMAGE
        dataset.Modality, dataset.BodyPartExamined, dataset.PatientWeight = "PT", "CHEST", "71.5"
        dataset.Units, dataset.DecayCorrection, dataset.CorrectedImage = "BQML", "START", ["ATTN", "DECY", "SCAT"]
        dataset.SeriesType, dataset.CountsSource = ["STATIC", "IMAGE"], "EMISSION"
        dataset.SeriesDescription = "PET AC FDG Quillfeather"
        dataset.SeriesDate = dataset.AcquisitionDate = "20190304"
        dataset.SeriesTime = dataset.AcquisitionTime = "101500"
        dataset.FrameReferenceTime, dataset.ActualFrameDuration, dataset.DecayFactor = "60000", "120000", "1.02"
        tracer, code = Dataset(), Dataset()
        tracer.Radiopharmaceutical, tracer.RadionuclideTotalDose, tracer.RadionuclideHalfLife = (
            "FDG",
            "350000000",
            "6586.2",
        )
        tracer.RadiopharmaceuticalStartTime, tracer.RadiopharmaceuticalStartDateTime = "091500", "20190304091500"
        code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "77004003", "SCT", "^18^Fluorine"
        tracer.RadionuclideCodeSequence = DicomSequence([code])
        dataset.RadiopharmaceuticalInformationSequence = DicomSequence([tracer])
        for keyword, value in more.items():
            setattr(dataset, keyword, value)
    return datasets


def suv_factor(dataset: Dataset) -> float:
    """Return g/mL per Bq/mL: body weight over the dose, decayed from injection to the start of the series."""
    tracer = dataset.RadiopharmaceuticalInformationSequence[0]
    times = [
        np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:14]}")
        for text in (tracer.RadiopharmaceuticalStartDateTime, dataset.SeriesDate + dataset.SeriesTime)
    ]
    seconds = (times[1] - times[0]) / np.timedelta64(1, "s")
    assert tracer.RadiopharmaceuticalStartTime == tracer.RadiopharmaceuticalStartDateTime[8:]
    decayed = float(tracer.RadionuclideTotalDose) * 0.5 ** (seconds / float(tracer.RadionuclideHalfLife))
    return float(dataset.PatientWeight) * 1000 / decayed


def test_suv_of_pet_is_the_same_after_deidentification(tmp_path: Path) -> None:
    datasets, folder = pet_series(), tmp_path / "cohort"
    write_datasets(datasets, folder)
    assert deidentify(folder) == 0
    (patient,) = way_back(folder)["patients"]
    moved = str(np.datetime64("2019-03-04") + patient["date_shift_days"]).replace("-", "")
    by_position = {tuple(dataset.ImagePositionPatient): dataset for dataset in datasets}
    for new in written(folder):
        old = by_position[tuple(new.ImagePositionPatient)]
        assert suv_factor(new) == suv_factor(old)
        assert new.SeriesDate == new.AcquisitionDate == moved
        start = new.RadiopharmaceuticalInformationSequence[0].RadiopharmaceuticalStartDateTime
        assert start == f"{moved}091500"
        for keyword in (
            "Modality", "Units", "DecayCorrection", "CorrectedImage", "SeriesType", "FrameReferenceTime", "DecayFactor",
            "ActualFrameDuration", "RescaleSlope", "RescaleIntercept", "PatientWeight",
        ):  # fmt: skip
            assert new[keyword].value == old[keyword].value, keyword
        np.testing.assert_array_equal(new.pixel_array, old.pixel_array)
        assert new.SeriesDescription == "PET AC FDG"
        codes = {item.CodeValue for item in new.DeidentificationMethodCodeSequence}
        assert codes == {"113100", "113105", "113107", "113108"}


def test_the_weight_stays_in_pet_only(tmp_path: Path) -> None:
    datasets = CtSeries().datasets()
    for dataset in datasets:
        dataset.PatientWeight, dataset.SeriesDescription = "71.5", "PET CT AC"
    write_datasets(datasets, tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 0
    for new in written(tmp_path / "cohort"):
        assert "PatientWeight" not in new
        assert "SeriesDescription" not in new


def test_a_pet_of_the_head_stays_identified(tmp_path: Path) -> None:
    write_datasets(pet_series(BodyPartExamined="HEAD"), tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 0
    assert json.loads((tmp_path / "out" / "cohort_card.json").read_text())["data_class"] == "identified"
