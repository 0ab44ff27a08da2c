"""Classes of volumes: `check --targets` matches rows to volumes and patients, and `preprocess` needs no masks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from support.dicom_builder import CtSeries
from support.image_files import check, save_table
from support.nifti_files import mask, save, volume, write_bids


def nifti_cohort(folder: Path, number: int = 6) -> Path:
    for case in range(number):
        save(folder / f"scan-{case}.nii.gz", volume(case))
    return folder


def prepare(folder: Path, *words: str) -> tuple[int, Path]:
    out = folder.parent / f"{folder.name}-out"
    options = (
        "--cohort",
        str(folder),
        "--cohort-index",
        str(out / "cohort_index.json"),
        "--output",
        str(out / "prepared"),
    )
    code = main(["preprocess", *options, "--run-report", str(out / "prepared.json"), "--num-threads", "1", *words])
    return code, out / "prepared"


def test_volumes_get_the_classes_of_their_rows_and_need_no_mask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    names = ["scan-0", "scan-1.nii.gz", *(f"scan-{n}" for n in range(2, 6))]
    table = save_table(tmp_path / "t.tsv", "volume\tclass", *(f"{name}\t{'AB'[n % 2]}" for n, name in enumerate(names)))
    code, results, index = check(folder, "--targets", str(table))
    assert code == 0
    assert index is not None
    assert [one.name for one in index.classes] == ["A", "B"]
    by_file = {case.files[0]: case.classes for case in index.cases}
    assert [by_file[f"scan-{n}.nii.gz"] for n in range(4)] == [("A",), ("B",), ("A",), ("B",)]
    assert results["cases_by_class"] == {"A": 3, "B": 3}
    assert "check: 2 classes, one for each case; cases: A 3, B 3" in capsys.readouterr().err
    code, output = prepare(folder, "--crop", "none")
    assert code == 0
    training = open_prepared(output / "training_set")
    assert [one.name for one in training.cohort.classes] == ["A", "B"]
    assert training.cases()
    for case in training.cases():
        assert case.case.has_label
        assert len(case.case.classes or ()) == 1
        assert not (case.folder / "label.npy").exists()
        assert case.volume_CIJK().shape[0] == 1


def test_masks_stay_where_a_cohort_has_masks_and_targets(tmp_path: Path) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    for case in range(6):
        save(folder / "labels" / f"scan-{case}.nii.gz", mask())
    table = save_table(tmp_path / "t.csv", "volume,class", *(f"scan-{n},{'AB'[n % 2]}" for n in range(6)))
    assert check(folder, "--targets", str(table))[0] == 0
    code, output = prepare(folder, "--crop", "none")
    assert code == 0
    for case in open_prepared(output / "training_set").cases():
        assert (case.folder / "label.npy").is_file()
        assert case.case.classes


def test_a_row_names_a_patient_and_so_all_volumes_of_this_patient(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for key, patient in (("a", "P1"), ("b", "P1"), ("c", "P2")):
        CtSeries(key=key, patient=patient).write(folder / key)
    table = save_table(tmp_path / "t.csv", "patient_id,diagnosis", "P1,x", "P2,y")
    code, _, index = check(folder, "--targets", str(table))
    assert code == 0
    assert index is not None
    by_patient = {case.patient_key: case.classes for case in index.cases}
    assert sorted(case.classes or () for case in index.cases) == [("x",), ("x",), ("y",)]
    assert len(by_patient) == 2


def test_a_row_names_a_subject_of_a_bids_folder(tmp_path: Path) -> None:
    write_bids(tmp_path / "cohort", ("01", "02"))
    table = save_table(tmp_path / "t.csv", "participant_id,class", "sub-01,x", "02,y")
    code, _, index = check(tmp_path / "cohort", "--targets", str(table))
    assert code == 0
    assert index is not None
    assert sorted(case.classes or () for case in index.cases) == [("x",), ("y",)]


def test_a_table_of_a_volume_cohort_is_read_only_on_request(tmp_path: Path) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    save_table(folder / "t.csv", "volume,class", *(f"scan-{n},{'AB'[n % 2]}" for n in range(6)))
    code, results, index = check(folder)
    assert code == 0
    assert index is not None
    assert (index.classes, index.cases[0].classes) == ((), None)
    assert "cases_by_class" not in results


def test_volumes_without_row_are_refused_and_have_no_target_if_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    table = save_table(tmp_path / "t.csv", "volume,class", *(f"scan-{n},{'AB'[n % 2]}" for n in range(4)), "Doe,A")
    assert check(folder, "--targets", str(table))[0] == 65
    message = capsys.readouterr().err
    assert "2 of 6 volumes have no row in the table of targets" in message
    assert "row 6 (the header is row 1)" in message
    assert "Doe" not in message
    assert "scan-" not in message
    code, _, index = check(folder, "--targets", str(table), "--on-error", "skip")
    assert code == 0
    assert index is not None
    assert sum(case.classes is None for case in index.cases) == 2


def test_a_table_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nifti_cohort(tmp_path / "cohort", 2)
    assert check(folder, "--targets", str(tmp_path / "none.csv"))[0] == 2
    assert "--targets is not an existing file" in capsys.readouterr().err


def test_image_size_is_refused_for_volumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    assert check(folder)[0] == 0
    assert prepare(folder, "--image-size", "64", "64", "--purpose", "inference")[0] == 2
    assert "invalid value of --image-size" in capsys.readouterr().err


GROUPS = ("AD", "NC", "sMCI", "AD", "NC", "sMCI")


def group_table(folder: Path, groups: tuple[str, ...] = GROUPS, *more: str) -> Path:
    return save_table(folder / "t.csv", "volume,class", *(f"scan-{n},{group}" for n, group in enumerate(groups)), *more)


def test_cases_of_other_classes_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    table = group_table(tmp_path, ("AD", "NC", "sMCI", "AD", "", "sMCI"))
    code, results, index = check(folder, "--targets", str(table), "--classes", "NC", "AD")
    assert code == 0
    assert index is not None
    assert [one.name for one in index.classes] == ["AD", "NC"]
    assert {case.files[0]: case.classes for case in index.cases} == {
        "scan-0.nii.gz": ("AD",), "scan-1.nii.gz": ("NC",), "scan-3.nii.gz": ("AD",),
    }  # fmt: skip
    assert results["cases_by_class"] == {"AD": 2, "NC": 1}
    message = capsys.readouterr().err
    assert (
        "3 of 6 cases left out: their class is not one of --classes NC AD. (seen: sMCI 2, without class 1)" in message
    )


def test_a_cohort_without_other_classes_is_the_same_with_the_option(tmp_path: Path) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    table = group_table(tmp_path, ("AD", "NC") * 3)
    assert (
        check(folder, "--targets", str(table))[2] == check(folder, "--targets", str(table), "--classes", "AD", "NC")[2]
    )


def test_a_row_of_a_left_out_class_needs_no_volume(tmp_path: Path) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    table = group_table(tmp_path, GROUPS, "scan-9,sMCI")
    assert check(folder, "--targets", str(table))[0] == 65
    assert check(folder, "--targets", str(table), "--classes", "AD", "NC")[0] == 0


def test_errors_of_kept_cases_and_rows_stay_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    words = ("--classes", "AD", "NC")
    assert check(folder, "--targets", str(group_table(tmp_path, GROUPS, "scan-9,AD")), *words)[0] == 65
    assert "1 of 7 rows of the table of targets name no file" in capsys.readouterr().err
    assert check(folder, "--targets", str(group_table(tmp_path, GROUPS[:4])), *words)[0] == 65
    assert "2 of 6 volumes have no row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--classes", "AD", "sMCl"), "write 'sMCI' (closest match)"),
        (("--classes", "AD"), "two or more different names"),
        (("--classes", "AD", "AD"), "two or more different names"),
    ],
)
def test_classes_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    assert check(folder, "--targets", str(group_table(tmp_path)), *words)[0] == 2
    assert message in capsys.readouterr().err


def test_classes_need_a_table_with_one_class_for_each_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nifti_cohort(tmp_path / "cohort")
    assert check(folder, "--classes", "AD", "NC")[0] == 2
    assert "--classes needs a table of targets" in capsys.readouterr().err
    table = save_table(tmp_path / "m.csv", "volume,AD,NC", *(f"scan-{n},1,{n % 2}" for n in range(6)))
    assert check(folder, "--targets", str(table), "--classes", "AD", "NC")[0] == 2
    assert "one class for each case" in capsys.readouterr().err


def write_groups(folder: Path, groups: dict[str, str], *, sessions: tuple[str, ...] = ("1",)) -> Path:
    write_bids(folder, tuple(groups), sessions)
    rows = (f"sub-{subject}\t{group}" for subject, group in groups.items())
    return save_table(folder / "participants.tsv", "participant_id\tgroup", *rows)


def test_a_subject_without_row_is_an_error_with_classes_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    table = write_groups(folder, {"01": "AD", "02": "NC", "03": "sMCI"})
    words = ("--targets", str(table), "--classes", "AD", "NC")
    code, _, index = check(folder, *words)
    assert code == 0
    assert index is not None
    assert sorted(case.classes or () for case in index.cases) == [("AD",), ("NC",)]
    save_table(table, "participant_id\tgroup", "sub-01\tAD", "sub-02\tNC")
    assert check(folder, *words)[0] == 65
    assert "the subject of the case is not in participants.tsv" in capsys.readouterr().err


def test_a_subject_in_two_splits_is_an_error_with_classes_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cohort"
    table = write_groups(folder, {"01": "AD", "02": "NC", "03": "sMCI"}, sessions=("1", "2"))
    words = ("--targets", str(table), "--classes", "AD", "NC")
    index = check(folder, *words)[2]
    assert index is not None
    by_file = {case.files[0]: case.case_id for case in index.cases}
    one, two = (by_file[f"sub-01/ses-{session}/anat/sub-01_ses-{session}_T1w.nii.gz"] for session in "12")
    (folder / "splits.json").write_text(json.dumps({"train": [one], "test": [two]}))
    assert check(folder, *words)[0] == 65
    assert "the same patient is in 2 splits" in capsys.readouterr().err
