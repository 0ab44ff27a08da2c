"""Classes of volumes: `check --targets` matches rows to volumes and patients, and `preprocess` needs no masks."""

from __future__ import annotations

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
