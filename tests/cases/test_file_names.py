"""F8: names of files and folders that are not UTF-8."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cases.chest import chest_RAS, ct_series, save_nifti, save_series
from medweave_steps.cli import main
from support.identified import deidentify, tree

LATIN_1 = os.fsdecode("Müller".encode("latin-1"))


def nifti_file(folder: Path) -> None:
    save_nifti(folder / "x.nii.gz", chest_RAS()[0]).rename(folder / f"{LATIN_1}.nii.gz")


def dicom_files(folder: Path) -> None:
    save_series(folder / LATIN_1, ct_series(), prefix=LATIN_1)


def nifti_folder_with_mask(folder: Path) -> None:
    hu, _, nodule = chest_RAS()
    save_nifti(folder / f"{LATIN_1}\n1" / "ct.nii.gz", hu)
    save_nifti(folder / f"{LATIN_1}\n1" / "labels" / "ct.nii.gz", nodule.astype("uint8"))


@pytest.mark.case("nonutf8_names", expected="the files are read: check, preprocess and deidentify end with 0")
@pytest.mark.parametrize("write", [nifti_file, dicom_files, nifti_folder_with_mask])
def test_names_in_latin_1(
    tmp_path: Path, seen: Callable[[object], None], capfd: pytest.CaptureFixture[str], write: Callable[[Path], None]
) -> None:
    cohort, index = tmp_path / "cohort", tmp_path / "index.json"
    cohort.mkdir()
    write(cohort)

    def step(*words: object) -> int:
        report = ("--run-report", tmp_path / f"{words[0]}.json", "--num-threads", "1")
        return main([str(word) for word in (*words, *report)])

    words = ("--cohort", cohort, "--cohort-index", index, "--spacing-mm", 4, 4, 4, "--purpose", "inference")
    codes = [
        step("check", "--cohort", cohort, "--output", index),
        step("preprocess", *words, "--output", tmp_path / LATIN_1),
        deidentify(cohort),
    ]
    seen(f"exit codes {codes}")
    assert codes == [0, 0, 0]
    assert "ller" not in capfd.readouterr().err
    assert not any("ller" in name for name in tree(tmp_path / "out"))
