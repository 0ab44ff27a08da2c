"""De-identified RT Structure Sets: the same ground truth under new UIDs, with the names of structures and of nobody."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as DicomSequence

from medweave_steps.io.cohort.discovery import case_id_of_series
from support.checked import check, read_truth
from support.dicom_builder import CtSeries, write_datasets
from support.identified import NAME, PATIENT, SECRETS, deidentify, identified_series, results, way_back
from support.structure_sets import DrawnRoi, circle, structure_set
from support.validators import dciodvfy_errors

SERIES = CtSeries(key="a", patient=PATIENT)
MERGE = ("1,2:tumor",)


def identified_structure_set() -> Dataset:
    """Return contours of two structures; headers and one name identify the patient, and one contour is longer than 64 KiB."""
    ring = circle((15.7, 16.3), 11.2, points=3000)
    rois = {
        1: DrawnRoi(name="GTV primary", contours=[(2, ring), (2, circle((15.7, 16.3), 5.2))]),
        2: DrawnRoi(name=f"Node {NAME}", contours=[(4, circle((15.7, 16.3), 4.2))]),
        3: DrawnRoi(name="planned"),
    }
    dataset, image = structure_set(SERIES, rois), identified_series()[0]
    for keyword in ("PatientName", "PatientBirthDate", "AccessionNumber", "ReferringPhysicianName", "StudyDescription"):
        setattr(dataset, keyword, image[keyword].value)
    dataset.StructureSetLabel, dataset.StructureSetName = f"of {NAME}", "protocol words"
    dataset.StructureSetDescription, dataset.ReviewerName, dataset.OperatorsName = (
        "study words",
        "Grimshaw^Ada",
        "Grimshaw",
    )
    dataset.StructureSetDate, dataset.ReviewDate, dataset.ReviewTime = "20190304", "20190304", "101500"
    dataset.ApprovalStatus = "APPROVED"
    for item in dataset.StructureSetROISequence:
        item.ROIDescription, item.ROIGenerationDescription = "study words", "protocol words"
    for item in dataset.RTROIObservationsSequence:
        item.ROIInterpreter, item.ROIObservationLabel = "Grimshaw^Ada", "study words"
    dataset.private_block(0x3287, "private words", create=True).add_new(1, "LO", f"private words {NAME}")
    equipment = Dataset()
    equipment.Manufacturer, equipment.StationName, equipment.InstitutionName = "Test", "StationNine", "St Elsewhere"
    dataset.ContributingEquipmentSequence = DicomSequence([equipment])
    return dataset


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deidentified") / "cohort"
    write_datasets(identified_series(), folder)
    write_datasets([identified_structure_set()], folder, names=["contours.dcm"], syntax="implicit")
    assert deidentify(folder) == 0
    return folder


def new_file(cohort: Path) -> Path:
    return cohort.parent / "out" / way_back(cohort)["files"]["contours.dcm"]


def test_the_ground_truth_is_the_same(cohort: Path) -> None:
    masks = []
    for folder in (cohort, cohort.parent / "out"):
        (case,) = check(folder, merge=MERGE).index.cases
        masks.append(read_truth(folder, case, merge=MERGE))
    assert masks[0] is not None
    assert masks[0].sum() > 300
    np.testing.assert_array_equal(masks[0], masks[1])
    assert results(cohort)["left_aside"] == {}


def test_no_byte_identifies_the_patient(cohort: Path) -> None:
    content = new_file(cohort).read_bytes().lower()
    assert [secret for secret in SECRETS if secret.lower().encode() in content] == []


def test_names_of_structures_stay_unless_they_hold_a_name_of_the_header(cohort: Path) -> None:
    dataset = pydicom.dcmread(new_file(cohort))
    assert [item.ROIName for item in dataset.StructureSetROISequence] == ["GTV primary", "REMOVED", "planned"]
    assert "113105" in {item.CodeValue for item in dataset.DeidentificationMethodCodeSequence}
    assert "Clean Descriptors Option" in results(cohort)["options"]
    image = pydicom.dcmread(cohort.parent / "out" / way_back(cohort)["files"]["000.dcm"])
    assert "113105" not in {item.CodeValue for item in image.DeidentificationMethodCodeSequence}


def test_coordinates_and_their_number_stay(cohort: Path) -> None:
    before, after = pydicom.dcmread(cohort / "contours.dcm"), pydicom.dcmread(new_file(cohort))
    for old, new in zip(before.ROIContourSequence[:2], after.ROIContourSequence[:2], strict=True):
        assert [list(c.ContourData) for c in new.ContourSequence] == [list(c.ContourData) for c in old.ContourSequence]
    assert len(after.ROIContourSequence[0].ContourSequence[0].ContourData) == 3 * 3000
    assert after.StructureSetDate != before.StructureSetDate


INSIDE, SKIN = circle((15.7, 16.3), 4.8), circle((15.7, 16.3), 9.5)


def head(key: str = "a") -> list[Dataset]:
    """Return a head scan in a frame of reference of its own."""
    images = CtSeries(key=key, patient=PATIENT).datasets()
    for image in images:
        image.BodyPartExamined = "BRAIN"
    return images


def write_mask(folder: Path, images: list[Dataset], columns: slice = slice(11, 22)) -> None:
    mask = np.zeros(SERIES.shape[::-1], np.uint8)  # column, row, slice
    mask[columns, 11:21, 1:4] = 1
    folder.mkdir(exist_ok=True)
    name = f"{case_id_of_series(images[0].SeriesInstanceUID)}.nii.gz"
    nibabel.save(nibabel.Nifti1Image(mask, SERIES.affine_ras()[:, [2, 1, 0, 3]]), folder / name)


@pytest.mark.parametrize(("contour", "code"), [(INSIDE, 0), (SKIN, 65)], ids=["in the brain", "on the skin"])
@pytest.mark.parametrize("frames", ["all", "of the ROI", "none"])
def test_contours_that_a_brain_mask_would_cut_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frames: str, contour: np.ndarray, code: int
) -> None:
    images = head()
    truth = structure_set(SERIES, {1: DrawnRoi(name="structure", contours=[(2, contour)])})
    if frames != "all":
        del truth.FrameOfReferenceUID
    if frames == "of the ROI":
        del truth.ReferencedFrameOfReferenceSequence
    if frames == "none":  # scans without a frame of reference: the file references the series
        del truth.ReferencedFrameOfReferenceSequence[0].FrameOfReferenceUID
        del truth.StructureSetROISequence[0].ReferencedFrameOfReferenceUID
        for image in images:
            del image.FrameOfReferenceUID
    write_datasets(images, tmp_path / "cohort")
    write_datasets([truth], tmp_path / "cohort" / "truth")
    write_mask(tmp_path / "masks", images)
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(tmp_path / "masks")) == code
    assert ("contours lie outside of the brain mask" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(("second", "code"), [("b", 0), ("a", 65), ("", 65)])
def test_contours_are_compared_with_the_mask_of_the_frame_that_their_roi_names(
    tmp_path: Path, second: str, code: int
) -> None:
    """A contour that lies in the mask of scan b only is refused where its ROI names scan a, and where it names none."""
    scans = {key: head(key) for key in "ab"}
    for key, columns in (("a", slice(11, 22)), ("b", slice(19, 30))):
        write_datasets(scans[key], tmp_path / "cohort" / key)
        write_mask(tmp_path / "masks", scans[key], columns)
    right = circle((15.7, 24.3), 4.2)
    rois = {1: DrawnRoi(name="in a", contours=[(2, INSIDE)]), 2: DrawnRoi(name="in b", contours=[(2, right)])}
    truth = structure_set(SERIES, rois)
    frame = scans[second][0].FrameOfReferenceUID if second else ""
    truth.StructureSetROISequence[1].ReferencedFrameOfReferenceUID = frame
    write_datasets([truth], tmp_path / "cohort" / "truth")
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(tmp_path / "masks")) == code


def test_dciodvfy_finds_no_new_error(cohort: Path) -> None:
    before = dciodvfy_errors(cohort / "contours.dcm")
    assert [line for line in dciodvfy_errors(new_file(cohort)) if line not in before] == []
