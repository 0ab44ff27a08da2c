"""MR from DICOM: series of a study as named channels on one grid, enhanced MR, and what `check` refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from pydicom.data import get_testdata_file

from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.channel_rules import names_agent
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.io.cohort.source import open_source
from support.checked import cases_of, check, errors_of, only_error, open_only, read_truth
from support.dicom_builder import CtSeries, rotated, segmentation, uid, write_datasets
from support.identified import deidentify
from support.mr_pet_builder import MrSeries, PetSeries

RULES = [
    {"name": "T2w", "echo_time_ms": [80, 120]},
    {"name": "T1w", "echo_time_ms": [5, 20], "contrast": False},
    {"name": "T1gd", "echo_time_ms": [5, 20], "contrast": True},
]


def series(patient: str, **changes: Any) -> dict[str, MrSeries]:
    """Return T2w, T1w and T1gd of one study; options change T1w."""
    common: dict[str, Any] = {"patient": patient}
    return {
        "T2w": MrSeries(key=f"{patient}-t2", **common),
        "T1w": MrSeries(key=f"{patient}-t1", **{**common, "echo_time_ms": 10.0, "description": "t1", **changes}),
        "T1gd": MrSeries(key=f"{patient}-t1c", **common, echo_time_ms=10.0, description="t1 c", contrast="GD"),
    }


def write(folder: Path, study: dict[str, MrSeries]) -> None:
    for name, one in study.items():
        one.write(folder / one.patient / name)


def check_one(folder: Path, rules: list[dict[str, Any]] = RULES) -> CaseEntry:
    index = check(folder, channels=rules).index
    assert [finding for finding in index.findings if finding.severity == "error"] == []
    (case,) = index.cases
    return case


def error_of(folder: Path, rules: list[dict[str, Any]] = RULES) -> Finding:
    (error,) = (f for f in check(folder, channels=rules).index.findings if f.severity == "error")
    return error


def channels_of(folder: Path, case: CaseEntry) -> np.ndarray:
    source = open_source(folder, case)
    planes = list(source.planes(num_workers=1, verify=True))
    return np.stack(planes).reshape((len(case.channels), *source.grid.shape))


def test_series_of_a_study_are_channels_in_the_order_of_the_rules(tmp_path: Path) -> None:
    study = series("ann")
    write(tmp_path, study)
    case = check_one(tmp_path)
    assert case.channels == ("T2w", "T1w", "T1gd")
    assert case.case_id == case_id_of_series(uid("ann-t2", "series"))
    assert [one.is_resampled for one in case.series] == [False, False, False]
    assert len(case.all_files) == 18
    np.testing.assert_array_equal(channels_of(tmp_path, case), np.stack([one.values() for one in study.values()]))


def test_the_series_description_is_matched_in_any_case_and_never_shown(tmp_path: Path) -> None:
    write(tmp_path, series("ann", description="T1 Quillfeather"))
    rules = [{"name": "T1w", "series_description": "^t1 quill"}, {"name": "T2w", "series_description": "t2"}]
    assert check_one(tmp_path, rules).channels == ("T1w", "T2w")
    error = error_of(tmp_path, [{"name": "PD", "series_description": "proton"}])
    assert "Quillfeather" not in str(error)


def test_rules_hold_after_de_identification(tmp_path: Path) -> None:
    write(tmp_path / "cohort", series("ann"))
    assert deidentify(tmp_path / "cohort") == 0
    case = check_one(tmp_path / "out")
    np.testing.assert_array_equal(
        channels_of(tmp_path / "out", case), np.stack([one.values() for one in series("ann").values()])
    )


@pytest.mark.parametrize(
    "rule", [{"repetition_time_ms": [3000, 5000]}, {"scanning_sequence": ["se"]}, {"inversion_time_ms": [2000, 2600]}]
)
def test_other_matchers_select_a_series(tmp_path: Path, rule: dict[str, Any]) -> None:
    MrSeries(key="flair", attributes={"InversionTime": 2300}).write(tmp_path / "a")
    other = MrSeries(key="b", repetition_time_ms=500).datasets()
    for dataset in other:
        dataset.ScanningSequence = "GR"
    write_datasets(other, tmp_path / "b")
    assert check_one(tmp_path, [{"name": "FLAIR", **rule}]).files[0].startswith("a/")


def test_a_channel_on_another_grid_is_resampled_as_by_simpleitk_and_reported(tmp_path: Path) -> None:
    turned = {"shape": (7, 40, 33), "spacing_mm": (2.5, 0.9, 0.6), "orientation": rotated((1, 0, 0), 8)}
    study = series("ann", **turned, origin=(-121.0, -91.0, -303.0))
    write(tmp_path, study)
    checked = check(tmp_path, channels=RULES).index
    (case,) = checked.cases
    (resampling,) = (finding for finding in checked.findings if finding.code == "channels-resampled")
    assert resampling.what == "channel T1w of 1 case: resampled linearly to the grid of the first channel (T2w)."
    assert re.search(r"cover: T1w \d\d%; other voxels become 0", resampling.seen)
    resampled = channels_of(tmp_path, case)[1]
    expected = resampled_by_simpleitk(tmp_path, case)
    inside = expected > -1
    assert 0.5 < inside.mean() < 1
    np.testing.assert_allclose(resampled[inside], expected[inside], atol=0.5)
    assert (resampled[~inside] == 0).mean() > 0.8  # SimpleITK ends at the centers of the outer voxels


def resampled_by_simpleitk(folder: Path, case: CaseEntry) -> np.ndarray:
    images = []
    for one in case.series[:2]:
        reader = sitk.ImageSeriesReader()
        reader.SetFileNames([str(folder / file) for file in one.files])
        images.append(sitk.Cast(reader.Execute(), sitk.sitkFloat32))
    return sitk.GetArrayFromImage(sitk.Resample(images[1], images[0], sitk.Transform(), sitk.sitkLinear, -2.0))


def test_only_the_wanted_planes_are_read_of_every_channel(tmp_path: Path) -> None:
    write(tmp_path, series("ann", spacing_mm=(2.0, 0.9, 0.9)))
    case = check_one(tmp_path)
    whole = channels_of(tmp_path, case)
    some = np.stack(list(open_source(tmp_path, case).planes(num_workers=1, wanted=[1, 4])))
    np.testing.assert_array_equal(some, whole[:, [1, 4]].reshape(some.shape))


def test_a_changed_channel_is_noticed(tmp_path: Path) -> None:
    study = series("ann")
    write(tmp_path, study)
    case = check_one(tmp_path)
    dataset = pydicom.dcmread(tmp_path / case.series[2].files[0])
    dataset.PixelData = bytes(len(dataset.PixelData))
    dataset.save_as(tmp_path / case.series[2].files[0])
    with pytest.raises(UserInputError, match="changed since"):
        channels_of(tmp_path, case)


def test_a_missing_channel_of_one_case_names_case_channel_and_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, series("ann"))
    study = series("bob")
    del study["T1gd"]
    write(tmp_path, study)
    error = error_of(tmp_path)
    assert (error.code, error.case_id) == ("missing-channel", case_id_of_series(uid("bob-t2", "series")))
    assert "T1gd" in error.what
    assert "MR, contrast agent no, echo time 10 ms, repetition time 4000 ms, 6 slices" in error.seen
    assert len(check(tmp_path, channels=RULES, skip=True).index.cases) == 1


def test_two_series_for_a_channel_are_refused_with_the_matcher_that_separates_them(tmp_path: Path) -> None:
    write(tmp_path, series("ann"))
    error = error_of(tmp_path, [{"name": "T1", "echo_time_ms": [5, 20]}])
    assert error.code == "ambiguous-channel"
    assert "(contrast, series_description)" in error.do


def test_one_series_for_two_channels_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"T2w": series("ann")["T2w"]})
    error = error_of(tmp_path, [{"name": "T2w", "contrast": False}, {"name": "FLAIR", "echo_time_ms": [80, 120]}])
    assert error.what.endswith("one series of the study matches the channels T2w and FLAIR.")


def test_series_of_a_localizer_and_of_no_rule_are_reported(tmp_path: Path) -> None:
    write(tmp_path, series("ann"))
    localizer = MrSeries(key="scout", patient="ann", echo_time_ms=100.0).datasets()
    localizer[0].ImageOrientationPatient = [0, 1, 0, 0, 0, -1]
    write_datasets(localizer, tmp_path / "scout")
    MrSeries(key="adc", patient="ann", echo_time_ms=60.0).write(tmp_path / "adc")
    findings = {finding.code: finding.what for finding in check(tmp_path, channels=RULES).index.findings}
    assert "no stack of parallel slices" in findings["not-a-volume"]
    assert findings["other-series"] == "1 series matches no channel and was ignored."


def test_channels_of_different_patients_are_refused(tmp_path: Path) -> None:
    study = series("ann")
    write(tmp_path, study)
    for path in (tmp_path / "ann" / "T1gd").iterdir():
        dataset = pydicom.dcmread(path)
        dataset.PatientID = "bob"
        dataset.save_as(path)
    error = error_of(tmp_path)
    assert error.code == "mixed-patients"
    assert error.seen == "2 patient identities in 3 series"


def test_channels_of_different_frames_of_reference_are_refused(tmp_path: Path) -> None:
    write(tmp_path, series("ann", frame="other"))
    error = error_of(tmp_path)
    assert error.code == "mixed-frames-of-reference"
    assert "T2w and T1w" in error.what


def test_channels_of_different_parts_of_the_body_are_refused(tmp_path: Path) -> None:
    write(tmp_path, series("ann", origin=(500.0, 0.0, 0.0)))
    assert error_of(tmp_path).code == "channels-apart"


def test_a_cohort_of_one_series_in_each_study_needs_no_rules(tmp_path: Path) -> None:
    for patient in ("ann", "bob"):
        MrSeries(key=patient, patient=patient).write(tmp_path / patient)
    cases = cases_of(tmp_path)
    assert [(case.channels, case.series) for case in cases] == [(("MR",), ())] * 2
    assert check(tmp_path).index.channels == ("MR",)


def test_several_series_without_rules_give_rules_to_start_from(tmp_path: Path) -> None:
    write(tmp_path, series("ann"))
    with pytest.raises(UserInputError) as error:
        check(tmp_path)
    assert "- {name: channel3, contrast: false, echo_time_ms: [81, 99]}" in error.value.do
    assert "- {name: channel1, contrast: true, echo_time_ms: [9, 11]}" in error.value.do


def test_an_mr_series_next_to_ct_is_ignored_without_rules(tmp_path: Path) -> None:
    CtSeries(patient="ann").write(tmp_path / "ct")
    MrSeries(key="t2", patient="ann").write(tmp_path / "mr")
    assert [case.channels for case in cases_of(tmp_path)] == [("CT",)]
    assert check_one(tmp_path, [{"name": "T2w", "contrast": False}]).channels == ("T2w",)


def test_rules_choose_one_of_several_ct_series(tmp_path: Path) -> None:
    for key, description in (("a", "thin"), ("b", "thick")):
        datasets = CtSeries(key=key, patient="ann").datasets()
        for dataset in datasets:
            dataset.SeriesDescription = description
        write_datasets(datasets, tmp_path / key)
    case = check_one(tmp_path, [{"name": "CT", "modality": "CT", "series_description": "thin"}])
    assert (case.channels, case.files[0][0]) == (("CT",), "a")


def test_the_mask_may_be_drawn_on_any_channel_of_the_grid(tmp_path: Path) -> None:
    study = series("ann")
    write(tmp_path, study)
    mask = np.zeros(study["T1gd"].shape, np.uint8)
    mask[2:4, 10:20, 5:9] = 1
    write_datasets([segmentation(study["T1gd"].datasets(), mask)], tmp_path / "seg")
    case = check_one(tmp_path)
    assert [one.has_ground_truth for one in case.series] == [False, False, True]
    np.testing.assert_array_equal(read_truth(tmp_path, case), mask)


def test_a_mask_on_the_grid_of_a_resampled_channel_is_refused(tmp_path: Path) -> None:
    study = series("ann", spacing_mm=(2.0, 0.9, 0.9))
    write(tmp_path, study)
    mask = np.zeros(study["T1w"].shape, np.uint8)
    mask[2, 5, 5] = 1
    write_datasets([segmentation(study["T1w"].datasets(), mask)], tmp_path / "seg")
    error = error_of(tmp_path)
    assert error.code == "mask-on-another-grid"
    assert error.do == "list T1w first in the rules of --channels"


def test_a_mask_of_a_series_that_is_not_read_is_reported(tmp_path: Path) -> None:
    MrSeries(key="a").write(tmp_path / "mr")
    other = MrSeries(key="b")
    mask = np.ones(other.shape, np.uint8)
    write_datasets([segmentation(other.datasets(), mask)], tmp_path / "seg")
    what = {finding.code: finding.what for finding in check(tmp_path).index.findings}["orphan-mask"]
    assert "references no MR or PT series of the cohort" in what


def test_masks_on_two_channels_are_refused(tmp_path: Path) -> None:
    study = series("ann")
    write(tmp_path, study)
    for number, name in enumerate(("T2w", "T1w")):
        mask = np.zeros(study[name].shape, np.uint8)
        mask[number, 5, 5] = 1
        write_datasets([segmentation(study[name].datasets(), mask)], tmp_path / f"seg{number}")
    assert error_of(tmp_path).code == "several-masks"


def test_an_enhanced_mr_file_is_one_volume(tmp_path: Path) -> None:
    scan = MrSeries(key="enhanced")
    write_datasets([scan.enhanced_mr()], tmp_path)
    case = check_one(tmp_path, [{"name": "T2w", "echo_time_ms": [80, 100], "repetition_time_ms": [4000, 4000]}])
    np.testing.assert_array_equal(open_source(tmp_path, case).volume(), scan.values())


def test_an_enhanced_mr_file_of_two_echoes_is_refused_with_their_times(tmp_path: Path) -> None:
    write_datasets([MrSeries(key="enhanced").enhanced_mr((30.0, 90.0))], tmp_path)
    error = only_error(tmp_path)
    assert error.code == "several-volumes"
    assert error.seen == "EffectiveEchoTime with 2 values: 30, 90"


def test_a_diffusion_series_of_several_b_values_is_refused(tmp_path: Path) -> None:
    datasets = MrSeries(key="dwi").datasets()
    for number, dataset in enumerate(datasets):
        dataset.DiffusionBValue = 1000.0 * (number % 2)
    write_datasets(datasets, tmp_path)
    assert "DiffusionBValue with 2 values" in only_error(tmp_path).seen


def test_the_spelling_of_a_time_does_not_matter(tmp_path: Path) -> None:
    datasets = MrSeries(key="a").datasets()
    datasets[2].EchoTime = "90.000"
    write_datasets(datasets, tmp_path)
    assert len(cases_of(tmp_path)) == 1


def test_mr_and_pet_in_one_cohort_need_rules(tmp_path: Path) -> None:
    MrSeries(key="t2", patient="ann").write(tmp_path / "mr")
    PetSeries(key="pet", patient="ann").write(tmp_path / "pet")
    with pytest.raises(UserInputError, match="no rules say which series") as error:
        check(tmp_path)
    assert error.value.seen == "MR and PT; up to 2 series in a study"
    assert check_one(tmp_path, [{"name": "PET", "modality": "PT"}]).files[0].startswith("pet/")


def test_values_are_rescaled_where_the_header_says_so(tmp_path: Path) -> None:
    scan = MrSeries(key="philips")
    datasets = scan.datasets()
    for dataset in datasets:
        dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = "2.5", "-3", "normalized"
    write_datasets(datasets, tmp_path)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), scan.values() * np.float32(2.5) - 3)


def test_half_a_rescale_is_refused(tmp_path: Path) -> None:
    datasets = MrSeries(key="a").datasets()
    for dataset in datasets:
        dataset.RescaleSlope = "2.5"
    write_datasets(datasets, tmp_path)
    assert only_error(tmp_path).code == "no-rescale"


REAL = [
    "MR_small.dcm",
    "MR_small_implicit.dcm",
    "MR_small_bigendian.dcm",
    "MR_small_RLE.dcm",
    "MR_small_jp2klossless.dcm",
]


def real_stack(folder: Path) -> None:
    """Write pydicom's MR image in five transfer syntaxes as five slices: all else, pixels too, stays as the scanner wrote it."""
    for number, name in enumerate(REAL):
        dataset = pydicom.dcmread(get_testdata_file(name))
        dataset.ImagePositionPatient[2] += 0.8 * number
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = f"2.25.{number + 1}"
        dataset.SeriesInstanceUID, dataset.StudyInstanceUID, dataset.FrameOfReferenceUID = (
            "2.25.77",
            "2.25.78",
            "2.25.79",
        )
        dataset.save_as(folder / f"{number}.dcm")


def test_mr_images_of_a_scanner_are_read_in_every_transfer_syntax(tmp_path: Path) -> None:
    real_stack(tmp_path)
    volume = open_only(tmp_path).volume()
    expected = pydicom.dcmread(get_testdata_file("MR_small.dcm")).pixel_array
    assert volume.shape == (5, 64, 64)
    for plane in volume:
        np.testing.assert_array_equal(plane, expected)


def test_a_truncated_mr_image_of_pydicom_is_refused(tmp_path: Path) -> None:
    real_stack(tmp_path)
    content = Path(str(get_testdata_file("MR_truncated.dcm"))).read_bytes()
    first = pydicom.dcmread(tmp_path / "0.dcm")
    path = tmp_path / "0.dcm"
    path.write_bytes(path.read_bytes()[: -(len(first.PixelData) - len(content) + 2000)])
    assert [error.code for error in errors_of(tmp_path)] == ["truncated-file"]


@pytest.mark.parametrize(("syntax", "code"), [("explicit", "truncated-file"), ("jpeg2000", "undecodable-pixels")])
def test_damaged_pixels_of_a_later_channel_name_its_series(tmp_path: Path, syntax: str, code: str) -> None:
    study = series("A")
    study["T2w"].write(tmp_path / "1")
    path = study["T1w"].write(tmp_path / "2", syntax=syntax)[3]  # the middle slice, the one that check decodes
    data = path.read_bytes()
    damaged = data[:-10] if code == "truncated-file" else data.replace(b"\xff\x4f\xff\x51", bytes(4))
    path.write_bytes(damaged)
    error = error_of(tmp_path, RULES[:2])
    assert (error.code, error.case_id) == (code, case_id_of_series(uid("A-t2", "series")))
    assert error.what.startswith(f"{error.case_id} (series 2): the slice at ")


def test_a_later_channel_that_changed_after_check_names_its_series(tmp_path: Path) -> None:
    study = series("A")
    study["T2w"].write(tmp_path / "1")
    path = study["T1w"].write(tmp_path / "2")[3]
    case = check_one(tmp_path, RULES[:2])
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    with pytest.raises(UserInputError, match=r"\(series 2\)"):
        channels_of(tmp_path, case)


def test_localizers_and_projections_of_pydicom_are_no_volumes(tmp_path: Path) -> None:
    folder = Path(str(get_testdata_file("MR_small.dcm"))).parent / "dicomdirtests" / "98892003"
    for path in folder.rglob("*"):
        if path.is_file():
            (tmp_path / f"{path.parent.name}-{path.name}").write_bytes(path.read_bytes())
    findings = check(tmp_path).index.findings
    assert [f.code for f in findings if f.severity == "error"] == ["no-volumes"]
    assert {f.code for f in findings} >= {"localizer", "not-a-volume"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Gadovist 7.5 ml", True), ("REMOVED", True), ("YES", True), ("Novartis agent", True), ("", False), (" ", False),
        ("NONE", False), ("No contrast", False), ("w/o", False), ("without KM", False), ("N/A", False), ("native", False),
    ],
)  # fmt: skip
def test_a_word_for_none_is_no_contrast_agent(text: str, expected: bool) -> None:
    assert names_agent(text) is expected
