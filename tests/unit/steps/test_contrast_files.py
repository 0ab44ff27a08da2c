"""Plain folders with one NIfTI file for each MR contrast (BraTS), and the printed rule of plain folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from support.checked import cases_of, check, errors_of, notices_of, only_error
from support.nifti_files import mask, save, volume, write_brats


def printed_by_check(cohort: Path, out: Path, capsys) -> str:
    words = ["check", "--cohort", str(cohort), "--output", str(out / "i.json"), "--run-report", str(out / "r.json")]
    assert main(words) == 0
    return capsys.readouterr().err


def test_the_files_of_a_brats_folder_are_channels(tmp_path, capsys):
    write_brats(tmp_path / "cohort", 2)
    cases = sorted(cases_of(tmp_path / "cohort"), key=lambda case: case.files)
    assert cases[1].channels == ("T1", "T1CE", "T2", "FLAIR")
    assert cases[1].files == tuple(f"BraTS_001/BraTS_001_{word}.nii.gz" for word in ("t1", "t1ce", "t2", "flair"))
    assert [case.ground_truth for case in cases] == [f"BraTS_00{n}/BraTS_00{n}_seg.nii.gz" for n in (0, 1)]
    assert len({case.patient_key for case in cases}) == 2
    assert all(case.case_id.startswith("case-") for case in cases)
    printed = printed_by_check(tmp_path / "cohort", tmp_path / "out", capsys)
    assert "check: rule: volumes of one folder whose names differ only in their last word" in printed
    assert "files 3, 4, 5, 1 with mask 2" in printed
    assert "BraTS" not in printed


def test_brats_of_2023_is_read(tmp_path):
    for case in ("00001-000", "00001-001"):
        name = f"BraTS-GLI-{case}"
        for place, word in enumerate(("t1n", "t1c", "t2w", "t2f")):
            save(tmp_path / name / f"{name}-{word}.nii.gz", volume(place + 10 * int(case[-1])))
        save(tmp_path / name / f"{name}-seg.nii.gz", mask())
    case = cases_of(tmp_path)[0]
    assert case.channels == ("T1N", "T1C", "T2W", "T2F")
    assert case.ground_truth is not None


def test_files_that_are_named_after_the_contrast_alone_are_read(tmp_path):
    for patient in "ab":
        for place, word in enumerate(("t2w", "adc")):
            save(tmp_path / patient / f"{word}.nii.gz", volume(place + 10 * ord(patient)))
        save(tmp_path / patient / "seg.nii.gz", mask())
    assert {(case.channels, case.ground_truth) for case in cases_of(tmp_path)} == {
        (("T2W", "ADC"), "a/seg.nii.gz"),
        (("T2W", "ADC"), "b/seg.nii.gz"),
    }


def test_masks_in_a_folder_labels_belong_to_the_cases(tmp_path):
    for case in "ab":
        for place, word in enumerate(("T2", "FLAIR")):
            save(tmp_path / "images" / f"{case}_{word}.nii.gz", volume(place + 10 * ord(case)))
        save(tmp_path / "labels" / f"{case}.nii.gz", mask())
    save(tmp_path / "labels" / "c.nii.gz", mask())
    assert {case.ground_truth for case in cases_of(tmp_path)} == {"labels/a.nii.gz", "labels/b.nii.gz"}
    assert "1 mask fits no volume" in notices_of(tmp_path)["orphan-mask"].what


def test_a_case_that_lacks_a_contrast_is_an_error(tmp_path):
    write_brats(tmp_path, 3)
    (tmp_path / "BraTS_001" / "BraTS_001_t1ce.nii.gz").unlink()
    error = only_error(tmp_path)
    assert error.code == "missing-channel"
    assert "channel T1CE" in error.what
    assert len(check(tmp_path, skip=True).index.cases) == 2


def test_two_masks_of_a_case_are_ambiguous(tmp_path):
    write_brats(tmp_path, 2)
    save(tmp_path / "BraTS_001" / "labels" / "BraTS_001.nii.gz", mask())
    assert [error.code for error in errors_of(tmp_path)] == ["ambiguous-mask"]


def test_a_volume_without_contrast_among_contrasts_is_refused(tmp_path):
    write_brats(tmp_path, 2)
    save(tmp_path / "Doe.nii.gz", volume(5))
    with pytest.raises(UserInputError) as caught:
        check(tmp_path)
    assert "volumes with and without an MR contrast" in caught.value.what
    assert "1 of 9 volumes without a contrast: file 11" in caught.value.seen
    assert "Doe" not in str(caught.value)


def test_t1_and_t2_alone_may_be_time_points_of_ct(tmp_path):
    for word in ("t1", "t2"):
        save(tmp_path / f"p_{word}.nii.gz", volume(len(word)))
    assert {case.channels for case in cases_of(tmp_path)} == {("CT",)}


def test_the_rule_of_a_plain_folder_is_printed(tmp_path, capsys):
    save(tmp_path / "cohort" / "a.nii.gz", volume())
    save(tmp_path / "cohort" / "labels" / "a.nii.gz", mask())
    printed = printed_by_check(tmp_path / "cohort", tmp_path / "out", capsys)
    assert "check: rule: a mask lies in a mask folder" in printed
    assert "file 1 with mask 2" in printed
