"""`medweave-step check` from a user's view: exit codes, printed text, written files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from medweave_core.contracts.labels import Label
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import read_index
from support.dicom_builder import CtSeries, segmentation, write_datasets


def run(folder: Path, *more: str) -> tuple[int, Path, Path]:
    out = folder.parent / "out"
    words = [
        "check",
        "--cohort",
        str(folder),
        "--output",
        str(out / "index.json"),
        "--run-report",
        str(out / "report.json"),
    ]
    return main([*words, *more]), out / "index.json", out / "report.json"


def cohort(folder: Path) -> Path:
    """Three patients, two with lesions."""
    for name in "abc":
        series = CtSeries(key=name, patient=f"patient-{name}", spacing_mm=(1.0 + "abc".index(name), 0.7, 0.7))
        series.write(folder / name)
        if name != "c":
            mask = np.zeros(series.shape, np.uint8)
            mask[2, 3:6, 3:6] = 1
            write_datasets([segmentation(series.datasets(), mask)], folder / name / "seg")
    return folder


def test_a_good_cohort(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, report = run(cohort(tmp_path / "cohort"))
    assert code == 0
    index = read_index(output)
    assert index.layout == "dicom"
    assert not index.synthetic
    assert index.data_class == "identified"
    assert [case.ground_truth is not None for case in sorted(index.cases, key=lambda c: c.series_ordinal)] == [
        True,
        True,
        False,
    ]
    results = json.loads(report.read_text())["results"]
    assert {key: results[key] for key in ("num_cases", "num_patients", "num_labelled", "num_lesions", "num_errors")} == {
        "num_cases": 3, "num_patients": 3, "num_labelled": 2, "num_lesions": 2, "num_errors": 0,
    }  # fmt: skip
    assert results["spacing_mm"]["between_slices"] == {"min": 1.0, "median": 2.0, "max": 3.0}
    message = capsys.readouterr().err
    assert "check: series 3/3" in message
    assert "3 usable CT volumes of 3 patients (DICOM)" in message
    assert "voxels between slices: 1.00 to 3.00 mm" in message
    for private in ("Doe", "patient-a", str(tmp_path), ".dcm"):
        assert private not in message
        assert private not in report.read_text()


def test_card_and_splits(tmp_path: Path) -> None:
    folder = cohort(tmp_path / "cohort")
    card = {"synthetic": True, "generator": "x", "labels": {"0": "background", "1": "nodule"}}
    (folder / "cohort_card.json").write_text(json.dumps(card))
    run(folder)
    ids = [case.case_id for case in read_index(tmp_path / "out/index.json").cases]
    (folder / "splits.json").write_text(json.dumps({"test": ids[:1]}))
    code, output, _ = run(folder)
    assert code == 0
    index = read_index(output)
    assert index.synthetic
    assert index.labels == (Label(value=1, name="nodule"),)
    assert [case.fixed_split for case in index.cases] == ["test", None, None]


def test_synthetic_is_said_wherever_the_card_lies(tmp_path: Path) -> None:
    folder = cohort(tmp_path / "cohort")
    (folder / "a/cohort_card.json").write_text('{"synthetic": true}')
    (folder / "a/splits.json").write_text('{"test": []}')
    code, output, _ = run(folder)
    assert code == 0
    assert read_index(output).synthetic
    codes = [finding.code for finding in read_index(output).findings]
    assert "splits-below" in codes
    assert "other-files" not in codes, "medweave's own files are no strangers"


def test_what_check_wrote_into_the_cohort_is_no_stranger(tmp_path: Path) -> None:
    folder = cohort(tmp_path / "cohort")
    written = ("--output", str(folder / "cohort_index.json"), "--run-report", str(folder / "run_report.json"))
    assert main(["check", "--cohort", str(folder), *written]) == 0
    code, output, _ = run(folder)
    assert code == 0
    assert read_index(output).findings == read_index(folder / "cohort_index.json").findings
    (folder / "notes.txt").write_text("somebody's own")
    _, output, _ = run(folder)
    message = [finding.what for finding in read_index(output).findings if finding.code == "other-files"]
    assert message == ["1 file is not DICOM and ignored."]


def test_all_errors_are_reported_at_once_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cohort(tmp_path / "cohort")
    (folder / "a/002.dcm").unlink()
    (folder / "c/003.dcm").write_bytes((folder / "c/003.dcm").read_bytes()[:-100])
    code, output, report = run(folder)
    assert code == 65
    assert not output.exists()
    assert not report.exists()
    message = capsys.readouterr().err
    assert "the cohort has 2 errors" in message
    assert "1 slice is missing" in message
    assert "the file is truncated" in message
    assert message.count("  seen:") == message.count("  expected:") == message.count("  do:") == 2


def test_bad_cases_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cohort(tmp_path / "cohort")
    (folder / "a/002.dcm").unlink()
    (folder / "c/zz.dcm").write_bytes(b"no DICOM")
    code, output, report = run(folder, "--on-error", "skip")
    assert code == 0
    assert len(read_index(output).cases) == 2
    assert "skipped: case-" in capsys.readouterr().err
    codes = {finding["code"] for finding in json.loads(report.read_text())["results"]["findings"]}
    assert {"missing-slice", "unreadable-file"} <= codes


def test_leaving_out_does_not_settle_a_leak(tmp_path: Path) -> None:
    folder = cohort(tmp_path / "cohort")
    run(folder)
    first = read_index(tmp_path / "out/index.json").cases[0].case_id
    (folder / "splits.json").write_text(json.dumps({"test": [first], "train": [first]}))
    assert run(folder, "--on-error", "skip")[0] == 65


def test_nothing_left_after_leaving_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = CtSeries().write(tmp_path / "cohort")
    paths[2].unlink()
    assert run(tmp_path / "cohort", "--on-error", "skip")[0] == 65
    assert "no usable CT, MR or PET volume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "seen"), [({}, "an empty folder"), ({"a.txt": b"x", "b.bmp": b"y"}, "2 files (.bmp, .txt)")]
)
def test_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, bytes], seen: str) -> None:
    (tmp_path / "cohort").mkdir()
    for name, data in files.items():
        (tmp_path / "cohort" / name).write_bytes(data)
    assert run(tmp_path / "cohort")[0] == 65
    message = capsys.readouterr().err
    assert seen in message
    assert "DICOM series, NIfTI volumes" in message


def test_not_dicom_under_a_dicom_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort/Doe.dcm").write_bytes(b"no DICOM at all")
    assert run(tmp_path / "cohort")[0] == 65
    message = capsys.readouterr().err
    assert "1 of 1 files is not readable as DICOM" in message
    assert "number 1 of the files sorted by path" in message
    assert "Doe" not in message


def test_a_cohort_that_is_no_folder(tmp_path: Path) -> None:
    assert run(tmp_path / "nowhere")[0] == 2


@pytest.mark.parametrize("card", ["{", "[]", '{"labels": ["nodule"]}', '{"labels": {"one": "nodule"}}'])
def test_a_card_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str], card: str) -> None:
    CtSeries().write(tmp_path / "cohort")
    (tmp_path / "cohort/cohort_card.json").write_text(card)
    assert run(tmp_path / "cohort")[0] == 65
    assert "cohort_card.json" in capsys.readouterr().err


def test_segments_that_mean_different_things_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for name, label in (("a", "nodule"), ("b", "lung")):
        series = CtSeries(key=name, patient=name)
        series.write(folder / name)
        mask = np.zeros(series.shape, np.uint8)
        mask[2, 3, 3] = 1
        write_datasets([segmentation(series.datasets(), mask, labels=(label,))], folder / name / "seg")
    code, _, report = run(folder)
    assert code == 0
    (finding,) = (f for f in json.loads(report.read_text())["results"]["findings"] if f["code"] == "labels-differ")
    assert finding["seen"] == "'nodule', 'lung'"


def test_help_names_units(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    message = capsys.readouterr().out
    assert "mm" in message
    assert "HU" in message


def big_cohort(folder: Path) -> None:
    """Volumes that take about a second each, without taking that long to write."""
    folder.mkdir()
    image = nib.Nifti1Image(np.zeros((512, 512, 300), np.int16), np.eye(4))
    nib.save(image, folder / "a.nii.gz")
    for number in range(20):
        (folder / f"b{number}.nii.gz").symlink_to(folder / "a.nii.gz")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_it_and_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    big_cohort(tmp_path / "cohort")
    before = sorted(os.listdir(tmp_path))  # noqa: PTH208
    words: list[Any] = [sys.executable, "-m", "medweave_steps", "check", "--cohort", "cohort", "--output", "index.json"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"check: series 1/21" in process.stderr.readline()
    process.send_signal(number)
    assert process.wait(timeout=10) == code
    assert b"interrupted" in process.stderr.read()
    assert sorted(os.listdir(tmp_path)) == before  # noqa: PTH208
