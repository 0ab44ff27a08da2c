"""The DICOM Segmentation, read by others."""

from __future__ import annotations

import numpy as np
import pydicom
import pytest

from medweave_core.contracts.model import RESEARCH_USE_ONLY
from support.segmented import TWO_BALLS, segment_series, series_with
from support.validators import dciodvfy_errors


@pytest.fixture
def delivered(run):
    return series_with(), run


def nifti_mask(run):
    import nibabel

    return np.asarray(nibabel.load(run.case("lesion_mask.nii.gz")).dataobj).transpose(2, 1, 0)


def test_every_frame_names_its_image_and_stands_where_it_does(delivered):
    series, run = delivered
    segmentation = pydicom.dcmread(run.case("lesion_mask.dcm"))
    images = series.datasets()
    assert segmentation.NumberOfFrames == len(images)
    for image, group in zip(images, segmentation.PerFrameFunctionalGroupsSequence, strict=True):
        named = group.DerivationImageSequence[0].SourceImageSequence[0]
        assert named.ReferencedSOPInstanceUID == image.SOPInstanceUID
        position = group.PlanePositionSequence[0].ImagePositionPatient
        np.testing.assert_allclose(np.float64(position), np.float64(image.ImagePositionPatient), atol=1e-6)
    named = {
        item.ReferencedSOPInstanceUID for item in segmentation.ReferencedSeriesSequence[0].ReferencedInstanceSequence
    }
    assert named == {image.SOPInstanceUID for image in images}
    np.testing.assert_array_equal(segmentation.pixel_array, nifti_mask(run))
    assert segmentation.pixel_array.any(axis=(1, 2)).sum() < len(images)  # empty frames are there


def test_it_says_what_it_is_and_is_not(delivered):
    series, run = delivered
    segmentation = pydicom.dcmread(run.case("lesion_mask.dcm"))
    assert segmentation.file_meta.TransferSyntaxUID == pydicom.uid.ExplicitVRLittleEndian
    assert segmentation.SegmentationType == "BINARY"
    assert "Research use only" in segmentation.ContentDescription
    assert RESEARCH_USE_ONLY.startswith("Research use only")
    assert len(segmentation.ContentDescription) <= 64
    (segment,) = segmentation.SegmentSequence
    assert segment.SegmentLabel == "Nodule"
    assert segment.SegmentedPropertyTypeCodeSequence[0].CodeMeaning == "Nodule"
    assert segment.SegmentAlgorithmType == "AUTOMATIC"
    source = series.datasets()[0]
    for keyword in ("PatientName", "PatientID", "PatientBirthDate", "StudyInstanceUID", "FrameOfReferenceUID"):
        assert segmentation[keyword].value == source[keyword].value
    assert segmentation.SeriesInstanceUID != source.SeriesInstanceUID


def test_its_date_is_that_of_the_source(delivered):
    segmentation = pydicom.dcmread(delivered[1].case("lesion_mask.dcm"))
    assert (segmentation.ContentDate, segmentation.ContentTime) == ("20200101", "120000")
    assert "InstanceCreationDate" not in segmentation


def test_the_distance_between_slices_is_the_real_one(delivered):
    # The series says SliceThickness 5; its slices lie 1.5 mm apart.
    segmentation = pydicom.dcmread(delivered[1].case("lesion_mask.dcm"))
    measures = segmentation.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
    assert float(measures.SpacingBetweenSlices) == pytest.approx(1.5)
    assert float(measures.SliceThickness) == 5
    np.testing.assert_allclose(np.float64(measures.PixelSpacing), (0.7, 0.8))


def test_highdicom_reads_it_as_a_volume(delivered):
    import highdicom

    series, run = delivered
    segmentation = highdicom.seg.segread(run.case("lesion_mask.dcm"))
    volume = segmentation.get_volume(combine_segments=True)
    index = (np.linalg.inv(volume.affine) @ series.affine_lps()).round(4)
    np.testing.assert_allclose(volume.spacing, (1.5, 0.7, 0.8), atol=1e-5)
    mask = nifti_mask(run)
    ours = np.argwhere(mask)
    theirs = (index @ np.c_[ours, np.ones(len(ours))].T).T[:, :3].round().astype(int)
    assert len(ours) == volume.array.sum() > 0
    assert (volume.array[tuple(theirs.T)] == 1).all()


@pytest.mark.parametrize("balls", [TWO_BALLS, ()], ids=["lesions", "empty"])
def test_dciodvfy_finds_no_error(tmp_path, model, balls):
    run = segment_series(tmp_path, model, series_with(balls))
    assert dciodvfy_errors(run.case("lesion_mask.dcm")) == []
    segmentation = pydicom.dcmread(run.case("lesion_mask.dcm"))
    assert segmentation.NumberOfFrames == 24
    assert segmentation.pixel_array.any() == bool(balls)


def test_frames_whose_bits_end_inside_a_byte(tmp_path, model):
    series = series_with((((2, 18, 17), 6.0),), shape=(5, 37, 35), spacing_mm=(3.0, 0.9, 0.9))
    run = segment_series(tmp_path, model, series)
    segmentation = pydicom.dcmread(run.case("lesion_mask.dcm"))
    assert len(segmentation.PixelData) % 2 == 0
    assert segmentation.pixel_array.any()
    np.testing.assert_array_equal(segmentation.pixel_array, nifti_mask(run))


@pytest.mark.parametrize("shared_orientation", [True, False])
def test_an_enhanced_image_with_frames_in_any_order(tmp_path, model, shared_orientation):
    series = series_with(key="enhanced")
    order = list(np.random.default_rng(5).permutation(24))
    image = series.enhanced(order=order)
    if not shared_orientation:
        shared = image.SharedFunctionalGroupsSequence[0]
        for group in image.PerFrameFunctionalGroupsSequence:
            group.PlaneOrientationSequence = shared.PlaneOrientationSequence
        del shared.PlaneOrientationSequence
    run = segment_series(tmp_path, model, series, headers=[image])
    assert run.exit_code == 0
    segmentation = pydicom.dcmread(run.case("lesion_mask.dcm"))
    np.testing.assert_array_equal(segmentation.pixel_array, nifti_mask(run))
    for slice_number, group in enumerate(segmentation.PerFrameFunctionalGroupsSequence):
        named = group.DerivationImageSequence[0].SourceImageSequence[0]
        assert named.ReferencedSOPInstanceUID == image.SOPInstanceUID
        assert named.ReferencedFrameNumber == order.index(slice_number) + 1
    assert dciodvfy_errors(run.case("lesion_mask.dcm")) == []
    assert dciodvfy_errors(run.case("lesions_sr.dcm")) == []


def test_a_series_of_several_enhanced_images_gets_its_nifti_and_a_notice(tmp_path, model, capsys):
    series = series_with(key="several")
    headers = [series.enhanced(order=range(12)), series.enhanced(order=range(12, 24))]
    run = segment_series(tmp_path, model, series, headers=headers)
    assert run.exit_code == 0
    assert sorted(path.name for path in run.case().iterdir()) == ["lesion_mask.nii.gz", "lesions.csv"]
    assert "no DICOM SEG" in capsys.readouterr().err


def test_headers_as_archives_hold_them(tmp_path, model):
    series = series_with()
    headers = series.datasets()
    for number, header in enumerate(headers):
        for keyword in (
            "AccessionNumber",
            "StudyID",
            "ReferringPhysicianName",
            "ContentDate",
            "SeriesDate",
            "SliceThickness",
            "FrameOfReferenceUID",
            "PositionReferenceIndicator",
            "PatientID",
        ):
            del header[keyword]
        header.add_new("PatientSex", "CS", "X")
        header.add_new("PatientBirthDate", "DA", "")
        header.SpacingBetweenSlices = "9"
        header.ImageOrientationPatient = [1, 0, 1e-9 * number, 0, 1, 0]
        header.SpecificCharacterSet = "ISO_IR 100"
        header.PatientName = "Müller^Jörg"
    run = segment_series(tmp_path, model, series, headers=headers)
    assert run.exit_code == 0
    segmentation = pydicom.dcmread(run.case("lesion_mask.dcm"))
    measures = segmentation.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
    assert float(measures.SpacingBetweenSlices) == pytest.approx(1.5)
    assert str(segmentation.PatientName) == "Müller^Jörg"
    assert segmentation.ContentDate == "20200101"  # the study's
    assert segmentation.PatientSex == ""
    for name in ("lesion_mask.dcm", "lesions_sr.dcm"):
        assert dciodvfy_errors(run.case(name)) == []


@pytest.mark.parametrize(
    ("character_set", "name"),
    [
        ("ISO_IR 192", "Wang^XiaoDong=王^小东"),
        (["", "ISO 2022 IR 87"], "Yamada^Tarou=山田^太郎=やまだ^たろう"),
        (["", "ISO 2022 IR 149"], "Hong^Gildong=洪^吉洞=홍^길동"),
        ("ISO_IR 144", "Люкceмбypг"),
        ("", "Doe^Jane"),
    ],
)
def test_names_in_any_script(tmp_path, model, character_set, name):
    series = series_with()
    headers = series.datasets()
    for header in headers:
        header.SpecificCharacterSet = character_set
        header.PatientName = name
    run = segment_series(tmp_path, model, series, headers=headers)
    assert run.exit_code == 0
    for file in ("lesion_mask.dcm", "lesions_sr.dcm"):
        assert str(pydicom.dcmread(run.case(file)).PatientName) == name
        assert dciodvfy_errors(run.case(file)) == []


def test_odd_values_pass_unchanged_and_unsaid(tmp_path, model, capfd, caplog, recwarn):
    # pydicom would refuse to write them, and highdicom would quote the name in a warning.
    series = series_with()
    headers = series.datasets()
    odd = {
        "PatientName": "Jane Doe of the ward",
        "PatientID": "1234567890" * 7,
        "AccessionNumber": "A" * 24,
        "PatientBirthDate": "1950",
        "StudyTime": "noon",
    }
    with pydicom.config.disable_value_validation():
        for header in headers:
            for keyword, value in odd.items():
                header[keyword] = pydicom.DataElement(keyword, pydicom.datadict.dictionary_VR(keyword), value)
        run = segment_series(tmp_path, model, series, headers=headers)
    assert run.exit_code == 0
    for file in ("lesion_mask.dcm", "lesions_sr.dcm"):
        dataset = pydicom.dcmread(run.case(file))
        assert [str(dataset[keyword].value) for keyword in list(odd)[:3]] == list(odd.values())[:3]
    messages = " ".join((*capfd.readouterr(), caplog.text, *(str(warning.message) for warning in recwarn)))
    assert "Jane" not in messages
    assert "1234567890" not in messages
