"""The default options of `train` are the demo's recipe: `train` gives a notice where they meet other scans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medweave_steps.cli import main
from medweave_steps.runtime.verb import StepContext
from medweave_steps.train import command
from support.chest_cohort import write_dicom, write_msd
from support.training_set import training_set

OPTIONS = "--steps --epochs --batch-size --patch-shape --learning-rate --network --channels"


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default recipe takes minutes; what `train` reports before it does not depend on it."""
    monkeypatch.setattr(command, "train_on_rank", lambda job, group: ({}, StepContext(verb="train", num_threads=1)))


def notices(folder: Path, *options: str) -> list[str]:
    """Return what a run of `train` on `folder/data` records in its run report."""
    report = folder / "report.json"
    words = ["--training-set", str(folder / "data"), "--output", str(folder / "model"), "--run-report", str(report)]
    assert main(["train", *words, "--training-log", str(folder / "log"), "--num-threads", "1", *options]) == 0
    found: list[str] = json.loads(report.read_text())["notices"]
    return found


def not_synthetic(folder: Path) -> None:
    """Rewrite a training set as one whose cohort has no card of a generator."""
    path = folder / "data" / "cohort.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"synthetic": False}))


def prepared(folder: Path, cohort: Path) -> None:
    """Run `check` and `preprocess`, which record where the scans come from."""
    index, reports = folder / "index.json", ["--run-report", str(folder / "report.json"), "--num-threads", "1"]
    assert main(["check", "--cohort", str(cohort), "--output", str(index), "--labels", "lung-nodule", *reports]) == 0
    words = ["--cohort", str(cohort), "--cohort-index", str(index), "--output", str(folder / "prepared")]
    assert main(["preprocess", *words, "--spacing-mm", "10", "10", "10", *reports]) == 0
    (folder / "prepared" / "training_set").rename(folder / "data")


def test_the_demo_recipe_fits_synthetic_scans(tmp_path: Path) -> None:
    training_set(tmp_path / "data")
    assert notices(tmp_path) == []


def test_other_scans_get_a_notice_with_the_recipe_and_the_options_to_set(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training_set(tmp_path / "data")
    not_synthetic(tmp_path)
    (notice,) = notices(tmp_path)
    assert "2000 steps of 10 patches of 32 x 32 x 32 voxels, network unet" in notice
    assert notice.endswith(f"Choose options for your data: {OPTIONS}.")
    assert f"train: note: {notice}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "options", [("--steps", "500"), ("--patch-shape", "16", "16", "16"), ("--network", "distmis-as-described")]
)
def test_options_of_the_recipe_replace_the_notice(tmp_path: Path, options: tuple[str, ...]) -> None:
    training_set(tmp_path / "data")
    not_synthetic(tmp_path)
    assert notices(tmp_path, *options) == []


def test_other_options_do_not_replace_it(tmp_path: Path) -> None:
    training_set(tmp_path / "data")
    not_synthetic(tmp_path)
    assert len(notices(tmp_path, "--seed", "3", "--validation-interval", "5")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "write", [lambda folder: write_msd(folder, 4), lambda folder: write_dicom(folder, 4, coarse=True)]
)
def test_nifti_and_dicom_of_unknown_origin_get_it(tmp_path: Path, write: Callable[[Path], Any]) -> None:
    write(tmp_path / "cohort")
    prepared(tmp_path, tmp_path / "cohort")
    assert len(notices(tmp_path)) == 1


@pytest.mark.slow
def test_phantoms_do_not_get_it_de_identified_or_not(tmp_path: Path) -> None:
    write_dicom(tmp_path / "cohort", 4, coarse=True)
    (tmp_path / "cohort" / "cohort_card.json").write_text('{"synthetic": true}')
    words = ["--cohort", str(tmp_path / "cohort"), "--output", str(tmp_path / "deidentified")]
    report = ["--run-report", str(tmp_path / "report.json")]
    assert main(["deidentify", *words, "--home", str(tmp_path / "home"), *report]) == 0
    prepared(tmp_path, tmp_path / "deidentified")
    assert notices(tmp_path) == []
