"""`medweave-step phantom brain --format dicom`: MR studies with the voxels of Task01 and a coded ground truth."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import highdicom as hd
import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from pydicom.sr.codedict import codes

from medweave_core.contracts.body_parts import known_body_part, regions_of, regions_of_labels
from medweave_steps.cli import main
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.io.cohort.labels import parse_labels
from medweave_steps.phantom.brain import CONTRASTS, LABELS, BrainPhantom, BrainSpec, generate_brain
from medweave_steps.phantom.brain_dicom import CODED_LABELS, write_study
from medweave_steps.phantom.patient import Patient
from support.validators import dciodvfy_errors

PATIENT = Patient(seed=1, ordinal=1, held_out=False, prefix="BRATS")


@pytest.fixture(scope="module")
def brain() -> BrainPhantom:
    phantom = generate_brain(BrainSpec(seed=PATIENT.chest_seed, matrix_size=32))
    assert phantom.enhances
    return phantom


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, brain: BrainPhantom) -> Path:
    folder = tmp_path_factory.mktemp("brain") / "dicom"
    write_study(folder, PATIENT, brain, "explicit")
    return folder


def images_of(study: Path, contrast: str) -> list[Any]:
    """Return the images of a series by their position, feet to head."""
    images = [pydicom.dcmread(path) for path in (study / "study-0001" / contrast.lower()).iterdir()]
    return sorted(images, key=lambda image: float(image.ImagePositionPatient[2]))


def test_a_study_has_one_series_per_contrast_in_one_frame_of_reference(study: Path, brain: BrainPhantom) -> None:
    images = {contrast: images_of(study, contrast) for contrast in CONTRASTS}
    everything = [image for series in images.values() for image in series]
    assert {image.SOPClassUID.name for image in everything} == {"MR Image Storage"}
    for keyword in ("StudyInstanceUID", "FrameOfReferenceUID", "PatientID"):
        assert len({image[keyword].value for image in everything}) == 1, keyword
    assert len({image.SeriesInstanceUID for image in everything}) == 4
    assert len({image.SOPInstanceUID for image in everything}) == len(everything) == 4 * brain.label_IJK.shape[2]
    for channel, contrast in enumerate(CONTRASTS):
        voxels = np.stack([image.pixel_array for image in images[contrast]])
        np.testing.assert_array_equal(voxels, brain.image_CIJK[channel].transpose(2, 1, 0))


def test_file_names_and_image_numbers_do_not_give_the_position(study: Path) -> None:
    paths = sorted((study / "study-0001/flair").iterdir())
    heights = [float(pydicom.dcmread(path).ImagePositionPatient[2]) for path in paths]
    assert any(higher < lower for lower, higher in pairwise(heights))


def test_headers_distinguish_contrasts(study: Path) -> None:
    first = {contrast: images_of(study, contrast)[0] for contrast in CONTRASTS}
    assert [contrast for contrast in CONTRASTS if first[contrast].get("ContrastBolusAgent")] == ["T1gd"]
    assert [contrast for contrast in CONTRASTS if "InversionTime" in first[contrast]] == ["FLAIR"]
    assert "IR" in first["FLAIR"].ScanningSequence
    long_echo = [contrast for contrast in CONTRASTS if float(first[contrast].EchoTime) > 60]
    assert long_echo == ["FLAIR", "T2w"]
    for contrast, image in first.items():
        assert contrast in image.SeriesDescription
        assert float(image.RepetitionTime) > 0
        assert {"SequenceVariant", "MRAcquisitionType", "MagneticFieldStrength"} <= set(image.dir())
        assert regions_of(known_body_part(image.BodyPartExamined)) == {"head"}


@pytest.mark.slow
def test_an_independent_reader_sees_the_grid_and_voxels_of_task01(tmp_path: Path) -> None:
    words = ["phantom", "brain", "--cases", "1", "--held-out-cases", "1", "--grid", "demo", "--run-report"]
    for form in ("dicom", "msd"):
        report = str(tmp_path / f"{form}.json")
        assert main([*words, report, "--format", form, "--output", str(tmp_path / form)]) == 0
    nifti = nibabel.load(tmp_path / "msd/imagesTr/BRATS_001.nii.gz")
    for channel, contrast in enumerate(CONTRASTS):
        reader = sitk.ImageSeriesReader()
        reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "dicom/study-0001" / contrast.lower())))
        image = reader.Execute()
        np.testing.assert_array_equal(sitk.GetArrayFromImage(image).T, np.asanyarray(nifti.dataobj)[..., channel])
        to_ras = np.diag([-1, -1, 1])
        directions = to_ras @ np.reshape(image.GetDirection(), (3, 3)) @ np.diag(image.GetSpacing())
        np.testing.assert_allclose(directions, nifti.affine[:3, :3], atol=1e-4)
        np.testing.assert_allclose(to_ras @ image.GetOrigin(), nifti.affine[:3, 3], atol=1e-3)
    reports = [json.loads((tmp_path / f"{form}.json").read_text()) for form in ("dicom", "msd")]
    assert reports[0]["results"] == reports[1]["results"]
    assert "PHANTOM-" not in json.dumps(reports)
    held_out = pydicom.dcmread(next((tmp_path / "dicom/study-h0001/flair").iterdir()))
    splits = json.loads((tmp_path / "dicom/splits.json").read_text())
    assert splits == {"test": [case_id_of_series(held_out.SeriesInstanceUID)]}
    card = json.loads((tmp_path / "dicom/cohort_card.json").read_text())
    assert card["synthetic"] is True
    assert parse_labels(card["labels"], where="card") == CODED_LABELS


def test_the_ground_truth_has_three_coded_segments_on_the_first_series(study: Path, brain: BrainPhantom) -> None:
    truth = hd.seg.segread(study / "ground-truth/study-0001.dcm")
    assert truth.SegmentationType == "BINARY"
    flair = images_of(study, "FLAIR")
    assert [item.SeriesInstanceUID for item in truth.ReferencedSeriesSequence] == [flair[0].SeriesInstanceUID]
    described = [truth.get_segment_description(number) for number in truth.segment_numbers]
    assert [(one.segment_number, one.segment_label) for one in described] == [
        (label.value, LABELS[str(label.value)]) for label in CODED_LABELS
    ]
    in_standard = (codes.SCT.Edema, codes.NCIt.NonEnhancingLesion, codes.NCIt.EnhancingLesion)
    for one, code in zip(described, in_standard, strict=True):
        assert one.segmented_property_type == code
        assert one.segmented_property_type.meaning == code.meaning
        assert one.segmented_property_category == codes.SCT.MorphologicallyAbnormalStructure
        assert one.anatomic_regions[0] == codes.SCT.Brain
    uids = [image.SOPInstanceUID for image in flair]
    voxels = truth.get_pixels_by_source_instance(uids, combine_segments=True, assert_missing_frames_are_empty=True)
    np.testing.assert_array_equal(voxels.transpose(2, 1, 0), brain.label_IJK)
    assert truth.NumberOfFrames < 3 * len(flair), "empty frames are left out"


def test_meanings_of_the_codes_are_those_of_the_dictionary() -> None:
    known = {
        code.value: code.meaning
        for code in (
            codes.SCT.Edema,
            codes.SCT.Brain,
            codes.SCT.MorphologicallyAbnormalStructure,
            codes.NCIt.EnhancingLesion,
            codes.NCIt.NonEnhancingLesion,
        )
    }
    for label in CODED_LABELS:
        for term in (label.category, label.type, label.anatomy):
            assert term is not None
            assert known[term.value] == term.meaning
    assert regions_of_labels(CODED_LABELS) == {"head"}


def test_a_tumor_without_an_enhancing_part_still_declares_its_segment(tmp_path: Path) -> None:
    patients = (Patient(seed=1, ordinal=number, held_out=False) for number in range(1, 40))
    brains = ((one, generate_brain(BrainSpec(seed=one.chest_seed, matrix_size=16))) for one in patients)
    patient, brain = next(pair for pair in brains if not pair[1].enhances)
    write_study(tmp_path, patient, brain, "explicit")
    path = next((tmp_path / "ground-truth").iterdir())
    assert len(hd.seg.segread(path).SegmentSequence) == 3
    assert dciodvfy_errors(path) == []


def test_what_is_written_is_valid_dicom(study: Path) -> None:
    for contrast in CONTRASTS:
        assert dciodvfy_errors(next((study / "study-0001" / contrast.lower()).iterdir())) == []
    assert dciodvfy_errors(study / "ground-truth/study-0001.dcm") == []


def test_a_seed_gives_the_same_bytes_and_a_lossless_encoding_the_same_voxels(
    study: Path, tmp_path: Path, brain: BrainPhantom
) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.dcm")}

    write_study(tmp_path / "again", PATIENT, brain, "explicit")
    assert contents(tmp_path / "again") == contents(study) != {}
    write_study(tmp_path / "packed", PATIENT, brain, "rle")
    for plain, packed in zip(images_of(study, "T2w"), images_of(tmp_path / "packed", "T2w"), strict=True):
        np.testing.assert_array_equal(plain.pixel_array, packed.pixel_array)
        assert packed.file_meta.TransferSyntaxUID != plain.file_meta.TransferSyntaxUID
