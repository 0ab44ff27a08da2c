"""`deidentify --keep-columns`: targets and covariates of participants.tsv, but nothing that identifies a subject."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from medweave_core.contracts.cohort import CohortIndex
from support.checked import check
from support.dicom_builder import CtSeries
from support.identified import deidentify, results
from support.image_files import check as check_with
from support.image_files import save_table
from support.nifti_files import save, volume, write_bids

SUBJECTS = ("Quillfeather", "774411", "Grimshaw", "Rosamund")
HEADER = "participant_id\tgroup\tsex\tage\tmmse"
ROWS = (
    "sub-Quillfeather\tAD\tF\t92.5\t21", "sub-774411\tNC\tM\t75.25\tn/a", "sub-Grimshaw\tAD\tM\t61\t24.5",
    "sub-Rosamund\tNC\tF\t\t30",
)  # fmt: skip


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"
    write_bids(folder, SUBJECTS)
    save_table(folder / "participants.tsv", HEADER, *ROWS)
    return folder


def table_of(output: Path) -> list[list[str]]:
    return [line.split("\t") for line in (output / "participants.tsv").read_text().splitlines()]


def classes_by_content(index: CohortIndex) -> dict[str, Sequence[str]]:
    return {case.content_sha256: case.classes or () for case in index.cases}


def test_targets_and_covariates_are_kept_under_pseudonyms(cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deidentify(cohort, "--faces", "absent", "--keep-columns", "mmse", "group", "age") == 0
    printed = capsys.readouterr().err
    assert "1 column of participants.tsv not written; retained: participant_id, group, age, mmse" in printed
    output = cohort.parent / "out"
    header, *rows = table_of(output)
    assert header == ["participant_id", "group", "age", "mmse"]
    assert {row[0] for row in rows} == {path.name for path in output.glob("sub-*")}
    expected = [["AD", "61", "24.5"], ["AD", "90", "21"], ["NC", "75.25", "n/a"], ["NC", "n/a", "30"]]
    assert sorted(row[1:] for row in rows) == expected
    text = (output / "participants.tsv").read_text() + printed
    assert not any(name in text for name in SUBJECTS)
    before = check_with(cohort, "--targets", str(cohort / "participants.tsv"))[2]
    after = check_with(output, "--targets", str(output / "participants.tsv"), "--classes", "AD", "NC")[2]
    assert before is not None
    assert after is not None
    assert classes_by_content(before) == classes_by_content(after)


def test_the_option_and_the_characteristics_add_up(cohort: Path) -> None:
    words = ("--faces", "absent", "--keep-columns", "group", "--retain-patient-characteristics")
    assert deidentify(cohort, *words) == 0
    assert table_of(cohort.parent / "out")[0] == ["participant_id", "group", "sex", "age"]


def test_columns_of_dicom_patients_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for key, patient in (("a", "P-1"), ("b", "P-1"), ("c", "P-2"), ("d", "P-3"), ("e", "P-4")):
        CtSeries(key=key, patient=patient).write(folder / key)
    rows = ("P-1\tAD\t90", "P-2\tNC\t89", "P-3\tAD\t70", "P-4\tNC\t71", "P-9\tNC\t72")
    save_table(folder / "participants.tsv", "participant_id\tgroup\tage", *rows)
    assert deidentify(folder, "--keep-columns", "group", "age") == 0
    output = tmp_path / "out"
    header, *table = table_of(output)
    assert header == ["participant_id", "group", "age"]
    assert sorted(row[1:] for row in table) == [["AD", "70"], ["AD", "90"], ["NC", "71"], ["NC", "89"]]
    assert {row[0] for row in table} == {path.name for path in output.glob("patient-*")}
    assert results(folder)["left_aside"] == {}
    code, _, index = check_with(output, "--targets", str(output / "participants.tsv"))
    assert code == 0
    assert index is not None
    assert sorted(case.classes or () for case in index.cases) == [("AD",), ("AD",), ("AD",), ("NC",), ("NC",)]
    assert deidentify(folder, name="without") == 0
    assert not (tmp_path / "without" / "participants.tsv").exists()
    assert results(folder, name="without")["left_aside"] == {"not-dicom": 1}


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        (("seen by Grimshaw",) * 4, "names of subjects"),
        (("x", "x", "y", "z"), "words of one subject only"),
        (("A1", "B2", "C3", "D4"), "words of one subject only"),
        (("2019-03-04", "2019-03-04", "2020-01-01", "2020-01-01"), "dates, numbers or long text"),
        (("Mar 2019",) * 4, "dates, numbers or long text"),
        (("19520314", "19480101", "19511231", "19500606"), "whole numbers of 1000 or more: 4"),
        (("1952", "1948.5", "71", "72"), "whole numbers of 1000 or more: 1"),
        (("word " * 20,) * 4, "dates, numbers or long text"),
        (("yes", "yes", "12", "12"), "dates, numbers or long text"),
    ],
)
def test_a_column_that_may_identify_is_refused(
    cohort: Path, capsys: pytest.CaptureFixture[str], values: tuple[str, ...], seen: str
) -> None:
    rows = (f"sub-{subject}\t{value}" for subject, value in zip(SUBJECTS, values, strict=True))
    save_table(cohort / "participants.tsv", "participant_id\tnote", *rows)
    assert deidentify(cohort, "--faces", "absent", "--keep-columns", "note") == 65
    message = capsys.readouterr().err
    assert "column 'note' of participants.tsv may identify subjects and cannot be kept" in message
    assert seen in message
    assert not any(value.strip() in message for value in values if len(value) > 2)
    assert not (cohort.parent / "out").exists()


def test_a_running_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    write_bids(folder, ("1",))
    rows = (f"sub-{number}\t{number}" for number in range(1, 41))
    save_table(folder / "participants.tsv", "participant_id\tscan", *rows)
    assert deidentify(folder, "--faces", "absent", "--keep-columns", "scan") == 65
    assert "another whole number for each subject" in capsys.readouterr().err


def test_a_word_of_one_subject_is_kept_if_the_card_declares_it(cohort: Path) -> None:
    save_table(cohort / "participants.tsv", HEADER, *ROWS[:3], ROWS[3].replace("NC", "pMCI"))
    words = ("--faces", "absent", "--keep-columns", "group")
    assert deidentify(cohort, *words) == 65
    (cohort / "cohort_card.json").write_text('{"classes": ["AD", "NC", "pMCI"]}')
    assert deidentify(cohort, *words) == 0
    assert sorted(row[1] for row in table_of(cohort.parent / "out")[1:]) == ["AD", "AD", "NC", "pMCI"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("grupo", "write 'group' (closest match)"), ("participant_id", "besides participant_id")],
)
def test_an_unknown_column_is_refused(
    cohort: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    assert deidentify(cohort, "--keep-columns", name) == 2
    assert message in capsys.readouterr().err


def test_a_cohort_without_participants_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    save(folder / "images" / "scan-1.nii.gz", volume(1))
    assert deidentify(folder, "--keep-columns", "group") == 2
    assert "no participants.tsv in --cohort" in capsys.readouterr().err
    save_table(folder / "participants.tsv", "participant_id\tgroup", "a\tAD", "b\tAD")
    assert deidentify(folder, "--faces", "absent", "--keep-columns", "group") == 2
    assert "--keep-columns applies to participants.tsv of a BIDS folder" in capsys.readouterr().err


def test_without_the_option_the_table_is_the_same_as_before(cohort: Path) -> None:
    assert deidentify(cohort, "--faces", "absent") == 0
    assert table_of(cohort.parent / "out")[0] == ["participant_id"]
    assert check(cohort.parent / "out").index.cases
