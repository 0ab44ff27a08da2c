"""Each bad cohort from a user's view: `check` reports the error in four parts, exits with 65 and writes no file.

The exact limits are tested with the readers (test_dicom_refusals, test_source_nifti and
others); here each kind goes once through the verb.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest

from medweave_steps.cli import main
from medweave_steps.io.cohort.discovery import case_id_of_series
from support.dicom_builder import CtSeries, segmentation, uid, write_datasets
from support.processes import names_below

SERIES = CtSeries(shape=(8, 36, 34), origin=(-100.0, -90.0, -300.0))


def empty_folder(folder: Path) -> None:
    folder.mkdir()


def not_dicom(folder: Path) -> None:
    folder.mkdir()
    (folder / "Doe.dcm").write_bytes(b"no DICOM at all")


def truncated_file(folder: Path) -> None:
    path = SERIES.write(folder)[6]
    path.write_bytes(path.read_bytes()[:-500])


def missing_slice(folder: Path) -> None:
    SERIES.write(folder)[3].unlink()


def duplicate_slice(folder: Path) -> None:
    again = SERIES.datasets()[2]
    again.SOPInstanceUID = "2.25.61"
    write_datasets([*SERIES.datasets(), again], folder)


def two_series_mixed(folder: Path) -> None:
    second = SERIES.datasets()
    for number, dataset in enumerate(second):
        dataset.SOPInstanceUID = f"2.25.6{number}"
    write_datasets([*SERIES.datasets(), *second], folder)


def non_uniform_spacing(folder: Path) -> None:
    datasets = SERIES.datasets()
    datasets[4].ImagePositionPatient[2] += 0.6
    write_datasets(datasets, folder)


def wrong_modality(folder: Path) -> None:
    datasets = SERIES.datasets()
    for dataset in datasets:
        dataset.Modality, dataset.SOPClassUID = "NM", pydicom.uid.NuclearMedicineImageStorage
    write_datasets(datasets, folder)


def no_pixel_data(folder: Path) -> None:
    datasets = SERIES.datasets()
    del datasets[6].PixelData
    write_datasets(datasets, folder)


def unsupported_transfer_syntax(folder: Path) -> None:
    for path in SERIES.write(folder, syntax="jpeg2000"):
        dataset = pydicom.dcmread(path)
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.MPEG2MPML
        dataset.save_as(path, implicit_vr=False, little_endian=True)


def mask_of(value: int, *, rows: int = 36) -> np.ndarray:
    mask = np.zeros((8, rows, 34), np.uint8)
    mask[3, 4:7, 5:8] = value
    return mask


def mask_on_another_grid(folder: Path) -> None:
    SERIES.write(folder / "ct")
    larger = CtSeries(shape=(8, 40, 34), origin=SERIES.origin)
    write_datasets([segmentation(larger.datasets(), mask_of(1, rows=40))], folder / "seg")


def labels_outside_the_declared_set(folder: Path) -> None:
    SERIES.write(folder / "ct")
    seg = segmentation(SERIES.datasets(), mask_of(2) + mask_of(1)[::-1], labels=("nodule", "mass"))
    write_datasets([seg], folder / "seg")
    (folder / "cohort_card.json").write_text('{"labels": {"0": "background", "1": "nodule"}}')


def patient_in_two_splits(folder: Path) -> None:
    for key in "abc":
        CtSeries(key=key, patient="patient-a" if key < "c" else "patient-c").write(folder / key)
    splits = {"train": [case_id_of_series(uid("a", "series"))], "test": [case_id_of_series(uid("b", "series"))]}
    (folder / "splits.json").write_text(json.dumps(splits))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (empty_folder, ["no usable CT, MR or PET volume", "an empty folder"]),
        (not_dicom, ["1 of 1 files is not readable as DICOM"]),
        (truncated_file, ["the slice at -288.00 mm", "truncated"]),
        (missing_slice, ["1 slice is missing", "-296.00 and -292.00 mm"]),
        (duplicate_slice, ["-296.00 mm"]),
        (two_series_mixed, ["every position has 2 slices"]),
        (non_uniform_spacing, ["2.60 mm between -294.00 and -291.40 mm"]),
        (wrong_modality, ["modality NM", "CT, MR or PT"]),
        (no_pixel_data, ["the slice at -288.00 mm"]),
        (unsupported_transfer_syntax, ["MPEG2", "Explicit VR Little Endian"]),
        (mask_on_another_grid, ["40 x 34 pixels"]),
        (labels_outside_the_declared_set, ["label 2", "1 (nodule)"]),
        (patient_in_two_splits, ["the same patient is in 2 splits", "test, train"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_check_refuses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], make: Callable[[Path], None], words: list[str]
) -> None:
    make(tmp_path / "cohort")
    before = names_below(tmp_path)
    out = ("--output", str(tmp_path / "out/index.json"), "--run-report", str(tmp_path / "out/report.json"))
    assert main(["check", "--cohort", str(tmp_path / "cohort"), *out, "--num-threads", "1"]) == 65
    message = capfd.readouterr().err
    assert [word for word in words if word not in message] == []
    assert message.count("  seen:") == message.count("  expected:") == message.count("  do:") == 1
    assert names_below(tmp_path) == before
    assert not re.search(r"Doe|patient-|\.dcm|\d+\.\d+\.\d{5,}", message), "a name, a file or a UID"
    assert str(tmp_path) not in message


def test_an_empty_mask_is_a_case_without_lesions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Not an error: healthy people are scanned too. A training set without any lesion is refused by train.
    SERIES.write(tmp_path / "cohort/ct")
    seg = segmentation(SERIES.datasets(), mask_of(0), keep_empty=True)
    write_datasets([seg], tmp_path / "cohort/seg")
    out = ("--output", str(tmp_path / "index.json"), "--run-report", str(tmp_path / "report.json"))
    assert main(["check", "--cohort", str(tmp_path / "cohort"), *out]) == 0
    assert "without lesions" in capfd.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["results"]["num_empty_masks"] == 1
