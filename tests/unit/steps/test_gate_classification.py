"""A tiny trained classifier through export, quantize and gate."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.gate import GateClassFigures, GateDecision
from medweave_core.contracts.schema import schema_of
from medweave_steps.cli import main
from medweave_steps.gate.judge import recompute
from medweave_steps.io.model.folder import read_card, write_card
from medweave_steps.report import gate_table
from support.image_set import CLASSES, TINY, image_set, installed_network

pytestmark = pytest.mark.slow  # a training, an export and a quantization

ANY_SPEED = ("--max-slowdown", "1000", "--min-speedup", "1000", "--pairs", "3")
SPLITS = {"train": 12, "validation": 18, "test": 6}


def step(folder: Path, verb: str, *words: object) -> int:
    """Run a verb in this process."""
    own = ["--run-report", str(folder / f"{verb}_report.json"), "--num-threads", "1"]
    return main([verb, *map(str, words), *own])


def gate(folder: Path, *options: str, output: str) -> int:
    models = ("--exported-model", folder / "exported", "--candidates", folder / "int8")
    outputs = ("--output", folder / output, "--decision", folder / f"{output}.json")
    return step(folder, "gate", *models, "--training-set", folder / "data", *outputs, *ANY_SPEED, *options)


def decision_of(folder: Path, output: str) -> GateDecision:
    """Return the decision, checked against its published schema."""
    document: dict[str, Any] = json.loads((folder / f"{output}.json").read_text())
    jsonschema.validate(document, schema_of("gate-decision"))
    return codec.from_json(GateDecision, document, where="the decision")


def model(folder: Path, name: str, *words: object) -> None:
    """Train a network that is large enough to be smaller in int8, and export it."""
    train = ("--training-set", folder / "data", "--output", folder / f"{name}-trained", "--growth", 24)
    train += ("--training-log", folder / f"{name}-log", *TINY, "--epoch-steps", 30, "--learning-rate", 0.02)
    assert step(folder, "train", *train, "--batch-size", 12, *words) == 0
    assert step(folder, "export", "--trained-model", folder / f"{name}-trained", "--output", folder / name) == 0
    report = json.loads((folder / "export_report.json").read_text())
    (folder / f"{name}-parity.json").write_text(json.dumps(report["results"]["parity"]))


@pytest.fixture(scope="module", params=[False, True], ids=["exclusive", "multi-label"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folders data/, exported-trained/, exported/, int8/ and untrained/."""
    folder = tmp_path_factory.mktemp("made")
    image_set(folder / "data", is_multi_label=request.param, of_split=SPLITS)
    with installed_network(tmp_path_factory.mktemp("site") / "installed"):
        model(folder, "exported", "--steps", 60)
        model(folder, "untrained", "--steps", 1)
        data = ("--training-set", folder / "data", "--windows", 8)
        assert (
            step(folder, "quantize", "--exported-model", folder / "exported", "--output", folder / "int8", *data) == 0
        )
        yield folder


def test_the_export_has_torchs_logits_and_classes(made: Path) -> None:
    parity = json.loads((made / "exported-parity.json").read_text())
    assert {one["decision_share"] for one in parity} == {0.0}
    assert max(one["max_logit_difference"] for one in parity) < 1e-3


def test_calibration_images_are_of_each_class(made: Path) -> None:
    notes = read_card(made / "int8").notes["calibration"]
    assert notes["windows"] == 8
    assert set(notes["windows_by_class"]) >= set(CLASSES)


def test_the_gate_decides_by_accuracy_and_macro_f1(made: Path) -> None:
    wide = ("--accuracy-tolerance", "1", "--macro-f1-tolerance", "1", "--macro-auc-tolerance", "1")
    assert gate(made, *wide, "--test-batches", str(made / "data"), output="accepted") == 0
    decision = decision_of(made, "accepted")
    assert isinstance(decision.float32_validation, GateClassFigures)
    assert len(decision.float32_validation.cases) == 18
    trained = read_card(made / "exported-trained").metrics
    # The network that was trained and calibrated is the one that is judged.
    assert decision.float32_validation.macro_f1 == pytest.approx(trained["validation_macro_f1"], abs=1e-4)
    own = decision.float32_validation.expected_calibration_error
    assert own == pytest.approx(trained["validation_expected_calibration_error"], abs=1e-3)
    assert decision.precision == "int8"
    assert "accuracy" in decision.reason
    assert "macro-F1" in decision.reason
    assert "macro-AUC" in decision.reason
    assert recompute(decision) == decision
    assert decision.float32_test is not None
    assert len(decision.float32_test.cases) == 6
    card = read_card(made / "accepted")
    assert card.precision == "int8"
    assert card.metrics["validation_accuracy"] is not None
    assert gate_table.gate_columns(decision) == ("Accuracy", "Macro-F1", "Macro-AUC", "Calibration error")
    assert [row["name"] for row in gate_table.gate_rows(decision)] == [
        "float32 (OpenVINO)",
        "float32 (ONNX Runtime)",
        "int8 (OpenVINO)",
    ]


def test_a_candidate_that_decides_worse_is_refused_with_its_accuracy(made: Path, tmp_path: Path) -> None:
    for name in ("data", "exported", "int8"):
        shutil.copytree(made / name, tmp_path / name)
    for suffix in ("xml", "bin"):  # a network of one step in the place of the quantized one
        shutil.copyfile(made / f"untrained/models/float32.{suffix}", tmp_path / f"int8/models/int8.{suffix}")
    write_card(tmp_path / "int8", read_card(tmp_path / "int8", verify=False))
    assert gate(tmp_path, output="kept") == 0
    decision = decision_of(tmp_path, "kept")
    assert decision.precision == "float32"
    refusals = [reason for reason in decision.candidates[1].reasons if reason.startswith("refused: ")]
    assert any("refused: accuracy −" in reason and "must stay above −0.02" in reason for reason in refusals)
    assert any("refused: macro-F1 −" in reason and "must stay above −0.05" in reason for reason in refusals)


def test_limits_of_another_task_are_refused(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert gate(made, "--dice-tolerance", "0.5", output="never") == 2
    assert "models of the task classification are not judged by it" in capfd.readouterr().err


def test_a_candidate_with_other_classes_is_refused(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("data", "exported", "int8"):
        shutil.copytree(made / name, tmp_path / name)
    card = read_card(tmp_path / "int8")
    write_card(tmp_path / "int8", dataclasses.replace(card, classes=card.classes[::-1]))
    assert gate(tmp_path, output="never") == 65
    assert "and classes of the exported model" in capfd.readouterr().err
