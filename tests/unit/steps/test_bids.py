"""BIDS-like folders: cases of subject and session, their channels, masks and tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from medweave_core.errors import UserInputError
from medweave_steps.check.cohort import Checked
from medweave_steps.cli import main
from medweave_steps.io.cohort.discovery import case_id_of_path
from support.checked import cases_of, check, errors_of, notices_of, only_error
from support.nifti_files import mask, save, volume, write_bids

ANAT = "sub-{0}/ses-{1}/anat/sub-{0}_ses-{1}_{2}.nii.gz"


def bids(folder: Path, *, synthetic: bool = True) -> Path:
    """Write two subjects of two sessions."""
    write_bids(folder, ("01", "02"), ("1", "2"))
    (folder / "cohort_card.json").write_text(json.dumps({"synthetic": synthetic}))
    return folder


def label_names(checked: Checked) -> list[tuple[int, str]]:
    return [(label.value, label.name) for label in checked.index.labels]


def test_cases_channels_masks_and_labels_are_read(tmp_path):
    folder = bids(tmp_path)
    checked = check(folder)
    assert (checked.index.layout, checked.index.channels) == ("bids", ("T1w", "FLAIR"))
    assert [case.case_id for case in checked.index.cases] == [
        f"sub-{subject}_ses-{session}" for subject in ("01", "02") for session in "12"
    ]
    first = checked.index.cases[0]
    assert first.files == (ANAT.format("01", "1", "T1w"), ANAT.format("01", "1", "FLAIR"))
    assert first.ground_truth == "derivatives/manual/" + ANAT.format("01", "1", "dseg")
    assert label_names(checked) == [(1, "lesion core")]
    assert errors_of(folder) == []


def test_sessions_of_a_subject_are_one_patient(tmp_path):
    keys = [case.patient_key for case in cases_of(bids(tmp_path))]
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_subjects_are_named_by_a_digest_unless_the_card_allows_their_names(tmp_path):
    assert cases_of(bids(tmp_path, synthetic=False))[0].case_id.startswith("case-")
    (tmp_path / "cohort_card.json").unlink()
    ids = {case.case_id for case in cases_of(tmp_path)}
    assert case_id_of_path("sub-01_ses-1") in ids
    (tmp_path / "cohort_card.json").write_text(json.dumps({"data_class": "de-identified"}))
    assert "sub-01_ses-1" in {case.case_id for case in cases_of(tmp_path)}


def test_nothing_of_the_participants_is_printed_or_stored(tmp_path, capsys):
    folder, out = bids(tmp_path / "cohort", synthetic=False), tmp_path / "out"
    save(folder / ANAT.format("03", "1", "T1w"), volume(9))
    save(folder / ANAT.format("03", "1", "FLAIR"), volume(8))
    words = ["check", "--cohort", str(folder), "--output", str(out / "i.json"), "--run-report", str(out / "r.json")]
    assert main([*words, "--on-error", "skip"]) == 0
    printed = capsys.readouterr().err
    for private in ("077Y", "sub-01", "sub-03", "participant_id"):
        assert private not in printed + (out / "r.json").read_text()
    assert "077Y" not in (out / "i.json").read_text()
    assert "check: rule: a case is a subject and session" in printed


def test_a_missing_channel_names_the_case_and_the_channel(tmp_path):
    folder = bids(tmp_path)
    (folder / ANAT.format("02", "1", "FLAIR")).unlink()
    error = only_error(folder)
    assert (error.code, error.case_id) == ("missing-channel", "sub-02_ses-1")
    assert "channel FLAIR" in error.what


def test_a_channel_of_few_cases_is_ignored_with_a_notice(tmp_path):
    folder = bids(tmp_path)
    save(folder / ANAT.format("02", "1", "T2star"), volume(7))
    assert cases_of(folder)[0].channels == ("T1w", "FLAIR")
    assert notices_of(folder)["channels-ignored"].seen == "T2star in 1"


def test_gadolinium_makes_a_channel_of_its_own(tmp_path):
    folder = bids(tmp_path)
    for subject in ("01", "02"):
        for session in "12":
            save(folder / ANAT.format(subject, session, "ce-gadolinium_T1w"), volume(int(subject) + 50 + int(session)))
    assert cases_of(folder)[0].channels == ("T1w", "T1gd", "FLAIR")


def test_two_runs_of_a_channel_are_ambiguous(tmp_path):
    folder = bids(tmp_path)
    save(folder / ANAT.format("01", "2", "run-2_T1w"), volume(6))
    error = only_error(folder)
    assert (error.code, error.case_id, error.seen) == ("ambiguous-channel", "sub-01_ses-2", "2 files of T1w")


def test_a_subject_without_row_is_an_error_and_a_row_without_scans_a_notice(tmp_path):
    folder = bids(tmp_path)
    (folder / "participants.tsv").write_text("participant_id\tage\nsub-01\t30\nsub-07\t40\n")
    assert {(error.code, error.case_id) for error in errors_of(folder)} == {
        ("no-participant", "sub-02_ses-1"),
        ("no-participant", "sub-02_ses-2"),
    }
    assert "1 of 2 participants" in notices_of(folder)["participants-without-scans"].what
    (folder / "participants.tsv").unlink()
    assert errors_of(folder) == []


@pytest.mark.parametrize(
    "content",
    [
        "age\n30\n",
        "",
        "participant_id\tage\nsub-01\t1\nsub-01\t2\n",
        "age\tparticipant_id\n30\n",
        b"participant_id\n\xff\n",
    ],
)
def test_a_table_of_participants_that_cannot_be_used_is_an_error(tmp_path, content):
    folder = bids(tmp_path)
    (folder / "participants.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserInputError, match=r"participants\.tsv cannot be used"):
        check(folder)


@pytest.mark.parametrize(
    ("table", "seen"),
    [
        ("index\tname\n1\tcore\n", "two names for index 1"),
        ("index\tname\n300\tcore\n", "index 300"),
        ("index\tname\nx\tcore\n", "an index that is no whole number"),
        ("value\tname\n1\tcore\n", "no such columns"),
    ],
)
def test_a_table_of_labels_that_cannot_be_used_is_an_error(tmp_path, table, seen):
    folder = bids(tmp_path)
    (folder / "derivatives" / "manual" / "sub-01" / "sub-01_dseg.tsv").write_text(table)
    with pytest.raises(UserInputError) as caught:
        check(folder)
    assert seen in caught.value.seen


def test_two_masks_of_a_session_are_ambiguous(tmp_path):
    folder = bids(tmp_path)
    save(folder / "derivatives" / "other" / ANAT.format("01", "1", "dseg"), mask())
    error = only_error(folder)
    assert (error.code, error.case_id) == ("ambiguous-mask", "sub-01_ses-1")
    assert "2 masks" in error.seen


def test_a_mask_without_session_belongs_to_an_only_session(tmp_path):
    write_bids(tmp_path, ("01",), ("1",))
    (tmp_path / "derivatives/manual" / ANAT.format("01", "1", "dseg")).unlink()
    save(tmp_path / "derivatives/manual/sub-01/anat/sub-01_dseg.nii.gz", mask())
    assert [case.ground_truth for case in cases_of(tmp_path)] == ["derivatives/manual/sub-01/anat/sub-01_dseg.nii.gz"]
    for suffix in ("T1w", "FLAIR"):
        save(tmp_path / ANAT.format("01", "2", suffix), volume(len(suffix) + 40))
    errors = errors_of(tmp_path)
    assert [error.code for error in errors] == ["ambiguous-mask"] * 2
    assert "one mask for several sessions" in errors[0].seen


def test_a_label_map_comes_before_a_binary_mask_and_a_binary_mask_has_its_own_name(tmp_path):
    folder = bids(tmp_path)
    for subject in ("01", "02"):
        for session in "12":
            save(folder / "derivatives" / "x" / ANAT.format(subject, session, "label-stroke_mask"), mask())
    assert label_names(check(folder)) == [(1, "lesion core")]
    for path in (folder / "derivatives" / "manual").rglob("*dseg*"):
        path.unlink()
    assert label_names(check(folder)) == [(1, "stroke")]


def test_a_mask_on_another_grid_than_the_first_channel_is_an_error(tmp_path):
    folder = bids(tmp_path)
    save(folder / "derivatives/manual" / ANAT.format("01", "1", "dseg"), mask(), np.diag([2.0, 2.0, 2.5, 1.0]))
    assert only_error(folder).code == "mask-on-another-grid"


def test_a_file_in_the_folder_of_another_subject_is_an_error(tmp_path):
    folder = bids(tmp_path)
    (folder / ANAT.format("02", "1", "FLAIR")).rename(folder / "sub-01/ses-1/anat/sub-02_ses-1_FLAIR.nii.gz")
    with pytest.raises(UserInputError) as caught:
        check(folder)
    assert "another subject or session" in caught.value.what
    assert "sub-0" not in str(caught.value.seen)


def test_names_without_entities_belong_to_the_subject_of_their_folder(tmp_path):
    for subject in ("01", "02"):
        save(tmp_path / f"sub-{subject}/anat/T1w.nii.gz", volume(int(subject)))
        save(tmp_path / f"derivatives/manual/sub-{subject}/anat/dseg.nii.gz", mask())
    assert {(case.files, case.ground_truth) for case in cases_of(tmp_path)} == {
        ((f"sub-{subject}/anat/T1w.nii.gz",), f"derivatives/manual/sub-{subject}/anat/dseg.nii.gz")
        for subject in ("01", "02")
    }


def test_files_without_session_and_files_of_other_kinds(tmp_path):
    for subject in ("01", "02"):
        save(tmp_path / f"sub-{subject}/anat/sub-{subject}_T1w.nii.gz", volume(int(subject)))
        save(tmp_path / f"sub-{subject}/anat/sub-{subject}_defacemask.nii.gz", mask())
        save(tmp_path / f"sub-{subject}/func/sub-{subject}_task-rest_bold.nii.gz", volume(30 + int(subject)))
    (tmp_path / "cohort_card.json").write_text(json.dumps({"synthetic": True}))
    assert [(case.case_id, case.channels) for case in cases_of(tmp_path)] == [
        ("sub-01", ("T1w",)),
        ("sub-02", ("T1w",)),
    ]
    assert "4 NIfTI files ignored" in notices_of(tmp_path)["other-files"].what
