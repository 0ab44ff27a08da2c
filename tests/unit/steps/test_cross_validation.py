"""`train --folds`: a model for each fold, validated on patients that it was not trained on."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from medweave_core.contracts import codec
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.io.model.folder import read_card
from medweave_steps.train.cross_validation import folds_of, mean_metrics, with_fold
from support.image_set import image_set
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights

SPLITS = ("train", "train", "train", "train", "validation", "test")


def train(folder: Path, data: Path, *words: str, name: str = "model") -> int:
    files = ["--training-set", str(data), "--output", str(folder / name), "--training-log", str(folder / f"{name}_log")]
    files += ["--run-report", str(folder / "report.json"), "--num-threads", "1"]
    return main(["train", *files, *TINY, *words])


def with_patients(data: Path, keys: str) -> PreparedFolder:
    """Give the cases these patients, one letter each."""
    cohort = open_prepared(data).cohort
    cases = [dataclasses.replace(case, patient_key=key) for case, key in zip(cohort.cases, keys, strict=True)]
    (data / "cohort.json").write_text(codec.dumps(dataclasses.replace(cohort, cases=tuple(cases))), encoding="utf-8")
    return open_prepared(data)


def ids(prepared: PreparedFolder, split: str) -> set[str]:
    return {case.case.case_id for case in prepared.cases(split)}


def test_every_patient_is_validated_once_and_never_trained_on_in_its_fold(tmp_path: Path) -> None:
    prepared = with_patients(training_set(tmp_path / "data", SPLITS), "aabcdd")
    folds = folds_of(prepared, 3, seed=5)
    validated = [ids(with_fold(prepared, fold), "validation") for fold in folds]
    assert sorted(case for cases in validated for case in cases) == [f"case-{n}" for n in range(5)]
    assert all(len(cases & {"case-0", "case-1"}) in (0, 2) for cases in validated), "two cases of one patient"
    for fold, cases in zip(folds, validated, strict=True):
        parts = with_fold(prepared, fold)
        assert ids(parts, "train") == {f"case-{n}" for n in range(5)} - cases
        assert ids(parts, "test") == {"case-5"}
    assert (
        len({tuple(sorted(ids(with_fold(prepared, folds_of(prepared, 2, seed=s)[0]), "validation"))) for s in range(9)})
        > 1
    )


def test_folds_have_equal_shares_of_each_class(tmp_path: Path) -> None:
    prepared = open_prepared(image_set(tmp_path / "data"))
    folds = folds_of(prepared, 3, seed=5)
    validated = [with_fold(prepared, fold).cases("validation") for fold in folds]
    counts = [Counter(case.case.classes for case in cases) for cases in validated]
    assert len(counts[0]) > 1
    assert all(max(count[name] for count in counts) - min(count[name] for count in counts) <= 1 for name in counts[0])


def test_means_leave_out_undefined_metrics() -> None:
    assert mean_metrics([{"a": 0.5, "b": None, "c": None}, {"a": 1.0, "b": 0.25, "c": None}]) == {
        "a": 0.75, "b": 0.25, "c": None,
    }  # fmt: skip


@pytest.mark.slow
def test_each_fold_has_a_model_and_a_row_of_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = training_set(tmp_path / "data", SPLITS[1:])
    words = ("--folds", "2", "--seed", "3", "--checkpoint-interval", "4")
    assert train(tmp_path, data, *words, "--checkpoint-folder", str(tmp_path / "saved")) == 0
    messages = capfd.readouterr().err
    table = json.loads((tmp_path / "model" / "cross_validation.json").read_text())
    assert [(row["fold"], row["model"], row["validation_cases"]) for row in table["folds"]] == [
        (0, "fold-0", 2),
        (1, "fold-1", 2),
    ]
    dices = [row["metrics"]["validation_dice"] for row in table["folds"]]
    assert table["mean"]["validation_dice"] == pytest.approx(sum(dices) / 2, abs=1e-4)
    cards = [read_card(tmp_path / "model" / name) for name in ("fold-0", "fold-1")]
    assert [card.metrics["validation_dice"] for card in cards] == dices
    assert [(card.training["folds"], card.training["fold"]) for card in cards] == [(2, 0), (2, 1)]
    assert "validation_dice of the 2 folds" in messages
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["results"]["metrics"] == table["mean"]
    assert sorted(case["case_id"] for case in report["cases"]) == [f"case-{n}" for n in range(4)]
    assert (tmp_path / "model_log" / "fold-1" / "curves.json").is_file()
    assert (tmp_path / "saved" / "fold-1" / "checkpoint.pt").is_file()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEDWEAVE_RESUME_FROM", str(tmp_path / "saved"))
        assert train(tmp_path, data, *words, name="again") == 0
    assert "resumed from a checkpoint" in capfd.readouterr().err
    for name in ("fold-0", "fold-1"):
        assert_equal_weights(tmp_path / "model" / name, tmp_path / "again" / name)


def test_folds_that_cannot_be_trained_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = training_set(tmp_path / "data")
    assert train(tmp_path, data, "--folds", "4") == 65
    message = capfd.readouterr().err
    assert "the training set has fewer patients than --folds" in message
    assert "3 patients in train and validation" in message
    for words in (("--folds", "1"), ("--folds", "2", "--strategy", "ddp", "--ranks", "2")):
        assert train(tmp_path, data, *words) == 2
        assert "at least 2, with --strategy single" in capfd.readouterr().err
    assert train(tmp_path, data, "--folds", "2", "--resume-from", str(tmp_path)) == 2
    assert "invalid value of --resume-from" in capfd.readouterr().err
    assert not (tmp_path / "model").exists()
