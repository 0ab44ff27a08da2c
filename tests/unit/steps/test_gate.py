"""`medweave-step gate` from a user's view: accepted and refused candidates, reasons, and irrelevant differences."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.gate import GateDecision
from medweave_core.contracts.model import ModelCard, Postprocessing
from medweave_core.contracts.schema import schema_of
from medweave_core.errors import InternalError, UserInputError
from medweave_steps.cli import main
from medweave_steps.gate.judge import recompute
from medweave_steps.io.model.folder import card_sha256, read_card, write_card
from support.candidates import candidate_of, exported_model
from support.processes import interrupted, names_below, nearly_full_disk, started, wait_for_line
from support.training_set import training_set

SPLITS = ("train", "validation", "validation", "validation", "validation")
# On a machine with other work the times of such small networks say nothing: speed decides only where a test says so.
ANY_SPEED = ("--max-slowdown", "1000", "--min-speedup", "1000")


def gate(folder: Path, *options: str, candidates: tuple[str, ...] = ("int8",), output: str = "accepted") -> int:
    """Runs the verb in this process."""
    words = ["gate", "--exported-model", str(folder / "exported"), "--training-set", str(folder / "data")]
    if candidates:
        words += ["--candidates", *(str(folder / name) for name in candidates)]
    words += ["--output", str(folder / output), "--decision", str(folder / f"{output}.json")]
    return main(
        [*words, "--run-report", str(folder / f"{output}_report.json"), "--num-threads", "1", "--pairs", "3", *options]
    )


def decision_of(folder: Path, output: str = "accepted") -> dict[str, Any]:
    """The decision, checked against its published schema."""
    document: dict[str, Any] = json.loads((folder / f"{output}.json").read_text())
    jsonschema.validate(document, schema_of("gate-decision"))
    return document


def int8_of(decision: dict[str, Any]) -> dict[str, Any]:
    """The only int8 candidate; float32 with ONNX Runtime is another candidate of each decision."""
    (candidate,) = (one for one in decision["candidates"] if one["name"] == "int8")
    return dict(candidate)


def make(folder: Path, *, exported: Mapping[str, Any] | None = None, **candidate: Any) -> Path:
    """Writes data/, exported/ and int8/."""
    training_set(folder / "data", SPLITS)
    exported_model(folder / "exported", **(exported or {}))
    candidate_of(folder / "exported", folder / "int8", **candidate)
    return folder


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller candidate that finds the same, accepted."""
    folder = make(tmp_path_factory.mktemp("gate"))
    assert gate(folder, *ANY_SPEED) == 0
    return folder


def test_a_smaller_candidate_that_finds_the_same_is_accepted(accepted: Path) -> None:
    decision = decision_of(accepted)
    assert decision["precision"] == "int8"
    candidate = int8_of(decision)
    assert candidate["is_accepted"] is True
    assert candidate["speed"]["size_ratio"] < 1
    assert candidate["validation"]["dice"] == {"value": 0.0, "lower": 0.0, "upper": 0.0}
    assert "smaller" in decision["reason"]


def test_the_accepted_model_pins_int8_and_holds_both_graphs(accepted: Path) -> None:
    card, exported, candidate = (read_card(accepted / name) for name in ("accepted", "exported", "int8"))
    assert card.precision == "int8"
    assert card.parent_sha256 == card_sha256(exported)
    assert set(card.files) == set(exported.files) | set(candidate.files)
    assert card.files["models/int8.bin"] == candidate.files["models/int8.bin"]
    assert card.notes["gate"]["candidate_sha256"] == card_sha256(candidate)
    assert set(card.metrics) == {"validation_dice", "validation_sensitivity", "validation_false_positives_per_scan"}


def test_segments_engine_opens_the_accepted_model_in_int8(accepted: Path) -> None:
    from medweave_steps.inference.engine import open_engine

    engine = open_engine(accepted / "accepted", read_card(accepted / "accepted"), num_threads=1)
    bright = engine.infer(np.ones(engine.batch_shape, np.float32))
    np.testing.assert_allclose(bright, 20.0, atol=1e-4)


def test_figures_are_those_of_the_balls(accepted: Path) -> None:
    decision = decision_of(accepted)
    assert [case["case_id"] for case in decision["float32_validation"]["cases"]] == [
        "case-1",
        "case-2",
        "case-3",
        "case-4",
    ]
    for case in decision["float32_validation"]["cases"]:
        assert (case["dice"], case["lesions"], case["lesions_hit"], case["false_positives"]) == (1.0, 2, 2, 0)
    assert int8_of(decision)["speed"]["pairs"] == 4  # a round per case, though the option asks for three
    assert decision["num_threads"] == 1
    assert decision["host_cpu"]
    report = json.loads((accepted / "accepted_report.json").read_text())
    assert report["results"] == decision
    assert report["cases"][0]["candidate_2"]["dice"] == 1.0


def test_what_was_decided_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    assert gate(tmp_path, *ANY_SPEED) == 0
    assert "gate: note: int8 (OpenVINO) accepted: smaller" in capfd.readouterr().err


def test_a_candidate_that_misses_lesions_is_refused(tmp_path: Path) -> None:
    # A logit of 40 x 0.74 (40 HU) - 32 < 0: it finds nothing.
    make(tmp_path, bias=-32.0)
    assert gate(tmp_path, *ANY_SPEED) == 0
    decision = decision_of(tmp_path)
    assert decision["precision"] == "float32"
    candidate = int8_of(decision)
    assert candidate["validation"]["figures"]["lesion_sensitivity"] == 0.0
    assert candidate["validation"]["lesion_sensitivity"]["value"] == -1.0
    refused = [reason for reason in candidate["reasons"] if reason.startswith("refused")]
    assert [reason.split()[1] for reason in refused] == ["Dice", "lesion"]


def specks(folder: Path, *, num_cases: int, hu: float = -350.0) -> None:
    """Puts one speck into the first validation cases: -350 HU is a logit of -1.4 for float32."""
    for number in range(1, 1 + num_cases):
        path = folder / f"data/cases/case-{number}/volume.npy"
        volume = np.load(path)
        volume[22, 2, 2] = hu
        np.save(path, volume)


def test_false_positives_alone_refuse_a_candidate(tmp_path: Path) -> None:
    # Its bias of -17 lets specks of -350 HU through; Dice falls by 2/(2·164+1), which is within a tolerance of 0.01.
    make(tmp_path, bias=-17.0)
    specks(tmp_path, num_cases=1)
    assert gate(tmp_path, *ANY_SPEED) == 0
    decision = decision_of(tmp_path)
    candidate = int8_of(decision)
    assert decision["precision"] == "float32"
    assert candidate["validation"]["false_positives_per_scan"]["value"] == 0.25
    assert candidate["validation"]["figures"]["dice_mean"] > 0.99
    refused = [reason for reason in candidate["reasons"] if reason.startswith("refused")]
    assert refused == ["refused: false positives per scan +0.25, may rise by 0.1"]
    assert gate(tmp_path, *ANY_SPEED, "--false-positive-tolerance", "0.25", output="tolerant") == 0
    assert decision_of(tmp_path, "tolerant")["precision"] == "int8"


def test_the_accepted_float32_model_is_the_exported_one(tmp_path: Path) -> None:
    make(tmp_path, bias=-32.0)
    assert gate(tmp_path, *ANY_SPEED) == 0
    card, exported = read_card(tmp_path / "accepted"), read_card(tmp_path / "exported")
    assert card.precision == "float32"
    assert card.files == exported.files
    assert card.metrics == exported.metrics


def test_without_candidates_the_exported_model_is_measured_in_each_runtime(tmp_path: Path) -> None:
    make(tmp_path)
    assert gate(tmp_path, *ANY_SPEED, candidates=()) == 0
    decision = decision_of(tmp_path)
    assert (decision["precision"], decision["runtime"], decision["float32_runtime"]) == ("float32", *["openvino"] * 2)
    assert [(one["name"], one["runtime"]) for one in decision["candidates"]] == [("float32", "onnxruntime")]
    assert "the same model, not faster" in decision["reason"]


def test_without_candidates_and_with_one_runtime_float32_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    make(tmp_path)
    assert gate(tmp_path, candidates=()) == 0
    assert "there is no candidate" in decision_of(tmp_path)["reason"]


def test_a_faster_runtime_is_fixed_in_the_card(tmp_path: Path) -> None:
    make(tmp_path)
    # Any speed counts as faster here.
    assert gate(tmp_path, "--min-speedup", "1", "--fixed-choice", "float32:onnxruntime") == 0
    card, exported = read_card(tmp_path / "accepted"), read_card(tmp_path / "exported")
    assert (card.precision, card.runtime) == ("float32", "onnxruntime")
    assert card.parent_sha256 == card_sha256(exported)
    assert card.files == exported.files


def test_a_machine_with_onnx_runtime_alone_decides_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert gate(tmp_path) == 0
    decision = decision_of(tmp_path)
    assert (decision["float32_runtime"], decision["runtime"]) == ("onnxruntime", "onnxruntime")
    assert int8_of(decision)["reasons"] == ["refused: no installed runtime can run it"]
    assert read_card(tmp_path / "accepted").runtime == "onnxruntime"


@pytest.mark.parametrize(
    ("choice", "precision", "runtime", "measured"),
    [
        ("float32:openvino", "float32", "openvino", []),
        ("float32:onnxruntime", "float32", "onnxruntime", [("float32", "onnxruntime")]),
        ("int8:openvino", "int8", "openvino", [("int8", "openvino")]),
    ],
)
def test_a_fixed_choice_is_accepted_whatever_its_speed(
    tmp_path: Path, choice: str, precision: str, runtime: str, measured: list[tuple[str, str]]
) -> None:
    make(tmp_path, side=7)
    assert gate(tmp_path, "--fixed-choice", choice) == 0
    decision = decision_of(tmp_path)
    assert (decision["precision"], decision["runtime"], decision["fixed_choice"]) == (precision, runtime, choice)
    assert [(one["name"], one["runtime"]) for one in decision["candidates"]] == measured
    assert "fixed by --fixed-choice" in decision["reason"]


def test_a_fixed_choice_that_misses_lesions_leaves_the_exported_model(tmp_path: Path) -> None:
    make(tmp_path, bias=-32.0)
    assert gate(tmp_path, "--fixed-choice", "int8:openvino") == 0
    decision = decision_of(tmp_path)
    assert decision["precision"] == "float32"
    assert decision["reason"].startswith("float32 (OpenVINO) kept. int8 (OpenVINO) refused: Dice")


@pytest.mark.parametrize(
    ("choice", "exit_code", "words"),
    [
        ("int4:openvino", 65, ("there is no candidate 'int4:openvino'", "candidates float32, int8;")),
        ("int8:tensorrt", 65, ("there is no candidate", "openvino, onnxruntime, torch")),
        ("int8", 65, ("CANDIDATE:RUNTIME",)),
        ("int8:onnxruntime", 65, ("cannot run with ONNX Runtime", "models/int8.onnx")),
        ("int8:torch", 65, ("cannot run with torch",)),
    ],
)
def test_a_fixed_choice_that_does_not_exist_is_refused(
    accepted: Path, capfd: pytest.CaptureFixture[str], choice: str, exit_code: int, words: tuple[str, ...]
) -> None:
    assert gate(accepted, "--fixed-choice", choice, output="none") == exit_code
    error = capfd.readouterr().err
    assert [word for word in words if word not in error] == []
    assert not (accepted / "none").exists()


def test_a_fixed_runtime_that_is_not_installed_is_reported_with_its_extra(
    accepted: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert gate(accepted, "--fixed-choice", "float32:onnxruntime", output="none") == 69
    assert "medweave[segment-ort]" in capfd.readouterr().err


def test_the_decision_is_recomputed_from_its_file(accepted: Path) -> None:
    decision = codec.from_json(GateDecision, json.loads((accepted / "accepted.json").read_text()), where="the decision")
    assert recompute(decision) == decision
    assert len(decision.float32_speed.seconds) >= 4
    emptied = dataclasses.replace(decision, reason="", chosen="", precision="float32", runtime="torch")
    assert recompute(emptied) == decision


def test_a_decision_of_an_earlier_version_cannot_be_recomputed(accepted: Path) -> None:
    document = json.loads((accepted / "accepted.json").read_text())
    document["float32_speed"].pop("seconds")
    with pytest.raises(UserInputError, match="cannot be recomputed"):
        recompute(codec.from_json(GateDecision, document, where="the decision"))


def pruned_of(exported: Path, folder: Path, *, source_sha256: str = "", **changes: Any) -> ModelCard:
    """Writes an exported model whose card says that it was pruned from the trained model of `exported`."""
    card = exported_model(folder, side=3, name="pruned", parent_sha256="2" * 64, **changes)
    source = source_sha256 or str(read_card(exported).parent_sha256)
    return write_card(folder, dataclasses.replace(card, notes={"pruning": {"source_sha256": source}}))


def test_a_pruned_model_and_its_int8_model_are_candidates(tmp_path: Path) -> None:
    make(tmp_path, exported={"parent_sha256": "3" * 64})
    # Its own threshold, chosen after pruning, is no difference of contracts.
    pruned = pruned_of(tmp_path / "exported", tmp_path / "pruned", postprocessing=Postprocessing(threshold=0.4))
    candidate_of(tmp_path / "pruned", tmp_path / "pruned8", side=1)
    names = ("pruned8", "int8", "pruned")
    assert gate(tmp_path, "--fixed-choice", "pruned-int8:openvino", candidates=names) == 0
    decision = decision_of(tmp_path)
    assert (decision["chosen"], decision["precision"]) == ("pruned-int8", "int8")
    card = read_card(tmp_path / "accepted")
    assert card.parent_sha256 == card_sha256(pruned)
    assert card.postprocessing.threshold == 0.4
    assert card.files["models/float32.bin"] == pruned.files["models/float32.bin"]
    assert card.files["models/int8.bin"] == read_card(tmp_path / "pruned8").files["models/int8.bin"]
    assert gate(tmp_path, *ANY_SPEED, candidates=names, output="all") == 0
    assert [(one["name"], one["runtime"]) for one in decision_of(tmp_path, "all")["candidates"]] == [
        ("float32", "onnxruntime"),
        ("pruned", "openvino"),
        ("pruned", "onnxruntime"),
        ("pruned-int8", "openvino"),
        ("int8", "openvino"),
    ]


def test_an_accepted_pruned_model_is_complete(tmp_path: Path) -> None:
    """Its network, not that of the exported model: architecture, weights of torch, ONNX and OpenVINO IR."""
    make(tmp_path, exported={"parent_sha256": "3" * 64})
    layers = {"class": "monai.networks.nets.UNet", "arguments": {}, "channels": {"model.0": 8}}
    (tmp_path / "pruned/models").mkdir(parents=True)
    (tmp_path / "pruned/models/model.safetensors").write_text("weights of fewer channels")
    pruned = pruned_of(tmp_path / "exported", tmp_path / "pruned", architecture=layers)
    assert gate(tmp_path, "--fixed-choice", "pruned:onnxruntime", candidates=("pruned", "int8")) == 0
    card = read_card(tmp_path / "accepted")
    assert (card.precision, card.runtime, card.architecture) == ("float32", "onnxruntime", layers)
    assert card.files == pruned.files
    assert {"models/model.safetensors", "models/model.onnx", "models/float32.bin"} <= set(card.files)
    assert card.notes["pruning"] == pruned.notes["pruning"]
    assert card.notes["gate"]["candidate_sha256"] == card.parent_sha256 == card_sha256(pruned)


def test_a_model_that_prune_left_unchanged_is_no_candidate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, exported={"parent_sha256": "3" * 64})
    unchanged = pruned_of(tmp_path / "exported", tmp_path / "pruned")
    note = {"pruning": {**unchanged.notes["pruning"], "is_pruned": False}}
    write_card(tmp_path / "pruned", dataclasses.replace(unchanged, notes=note))
    card = candidate_of(tmp_path / "pruned", tmp_path / "pruned8", side=1)
    write_card(tmp_path / "pruned8", dataclasses.replace(card, notes=note))
    names = ("pruned", "int8", "pruned8")
    assert gate(tmp_path, *ANY_SPEED, candidates=names) == 0
    assert "prune removed nothing within its tolerance" in capfd.readouterr().err
    assert {one["name"] for one in decision_of(tmp_path)["candidates"]} == {"float32", "int8"}
    assert gate(tmp_path, "--fixed-choice", "pruned:openvino", candidates=names, output="none") == 65
    assert "there is no candidate 'pruned:openvino'" in capfd.readouterr().err


def test_a_pruned_model_of_another_training_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, exported={"parent_sha256": "3" * 64})
    pruned_of(tmp_path / "exported", tmp_path / "pruned", source_sha256="4" * 64)
    assert gate(tmp_path, candidates=("pruned",)) == 65
    error = capfd.readouterr().err
    assert "was not derived from this exported model" in error
    assert "parent 3333333333333333…" in error


def test_another_float32_model_is_no_candidate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    exported_model(tmp_path / "other", side=3)
    assert gate(tmp_path, candidates=("other",)) == 65
    assert "precision float32 without a note about pruning" in capfd.readouterr().err


def test_an_int8_model_of_a_pruned_model_needs_that_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, exported={"parent_sha256": "3" * 64})
    pruned_of(tmp_path / "exported", tmp_path / "pruned")
    candidate_of(tmp_path / "pruned", tmp_path / "pruned8")
    assert gate(tmp_path, candidates=("pruned8",)) == 65
    assert "of a pruned model among the candidates" in capfd.readouterr().err


def test_a_second_candidate_of_a_kind_has_a_name_of_its_own(tmp_path: Path) -> None:
    make(tmp_path)
    candidate_of(tmp_path / "exported", tmp_path / "second", bias=-20.5)
    assert gate(tmp_path, "--fixed-choice", "int8-2:openvino", candidates=("int8", "second")) == 0
    assert decision_of(tmp_path)["chosen"] == "int8-2"
    assert read_card(tmp_path / "accepted").notes["gate"]["candidate_sha256"] == card_sha256(tmp_path / "second")


def test_a_candidate_that_is_neither_faster_nor_smaller_is_refused(tmp_path: Path) -> None:
    make(tmp_path, side=7)
    assert gate(tmp_path, *ANY_SPEED) == 0
    candidate = int8_of(decision_of(tmp_path))
    assert candidate["is_accepted"] is False
    assert "neither faster nor smaller" in candidate["reasons"][0]


def test_a_network_that_gives_no_numbers_is_refused_not_raised(tmp_path: Path) -> None:
    make(tmp_path, gain=float("nan"))
    candidate_of(tmp_path / "exported", tmp_path / "good", bias=-20.5)
    assert gate(tmp_path, *ANY_SPEED, candidates=("int8", "good")) == 0
    decision = decision_of(tmp_path)
    broken, good = (one for one in decision["candidates"] if one["precision"] == "int8")
    assert broken["is_accepted"] is False
    assert broken["speed"] is None
    assert "inference failed" in broken["reasons"][0]
    assert good["is_accepted"] is True
    assert read_card(tmp_path / "accepted").notes["gate"]["candidate_sha256"] == good["card_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hu", "float32_dice", "int8_dice"),
    [
        (None, 1.0, 1.0),  # as the others
        (-1000.0, 0.0, 0.0),  # nothing to be found
        (
            -350.0,
            0.0,
            pytest.approx(2 * 156 / (156 + 24 * 20 * 16)),
        ),  # float32 sees nothing, int8 lesion everywhere
    ],
)
def test_test_cases_are_reported_and_cannot_change_the_decision(
    tmp_path: Path, hu: float | None, float32_dice: float, int8_dice: float
) -> None:
    """Even where int8 is useless on the test split: decision, reasons and model stay those of the validation split."""
    make(tmp_path, bias=-17.0)
    for name in ("first", "second"):
        test = training_set(tmp_path / name, ("test", "test", "test"))
        for path in test.rglob("volume.npy") if hu is not None else ():
            np.save(path, np.full_like(np.load(path), hu))
    batches = ("--test-batches", str(tmp_path / "first"), str(tmp_path / "second"))
    assert gate(tmp_path, *ANY_SPEED, output="without") == 0
    assert gate(tmp_path, *ANY_SPEED, *batches, output="with") == 0
    without, having = decision_of(tmp_path, "without"), decision_of(tmp_path, "with")
    assert without["float32_test"] is None
    assert int8_of(without)["test"] is None
    assert len(having["float32_test"]["cases"]) == 6
    assert having["float32_test"]["dice_mean"] == float32_dice
    assert int8_of(having)["test"]["figures"]["dice_mean"] == int8_dice
    assert having["precision"] == without["precision"] == "int8"
    for name in ("is_accepted", "validation"):
        assert int8_of(having)[name] == int8_of(without)[name]
    assert card_sha256(tmp_path / "with") == card_sha256(tmp_path / "without")


def test_a_candidate_that_fails_on_the_test_split_alone_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    test = training_set(tmp_path / "test", ("test", "test"))
    precisions: list[str] = []

    def check(logits: np.ndarray, card: ModelCard, *, what: str) -> None:
        precisions.append(card.precision)
        if card.precision == "int8" and precisions.count("int8") > SPLITS.count("validation"):
            raise InternalError("no numbers", seen="3 voxels are NaN")

    monkeypatch.setattr("medweave_steps.inference.windows.check_finite", check)
    assert gate(tmp_path, *ANY_SPEED, "--test-batches", str(test)) == 0
    assert "note: int8 (OpenVINO): inference failed on the test split: 3 voxels are NaN" in capfd.readouterr().err
    candidate = int8_of(decision_of(tmp_path))
    assert (candidate["is_accepted"], candidate["failure"], candidate["test"]) == (True, "", None)


def test_a_candidate_of_another_model_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, parent_sha256="0" * 64)
    assert gate(tmp_path) == 65
    assert "was not derived from this exported model" in capfd.readouterr().err
    assert not (tmp_path / "accepted").exists()
    assert not (tmp_path / "accepted.json").exists()


def test_a_candidate_with_another_threshold_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    card = read_card(tmp_path / "int8")
    text = (tmp_path / "int8/model_card.json").read_text().replace('"threshold": 0.5', '"threshold": 0.4')
    (tmp_path / "int8/model_card.json").write_text(text)
    assert card.postprocessing.threshold == 0.5
    assert gate(tmp_path) == 65
    assert "cannot replace the exported model" in capfd.readouterr().err


def test_a_candidate_in_the_place_of_the_exported_model_is_refused(
    accepted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["gate", "--exported-model", str(accepted / "int8"), "--training-set", str(accepted / "data")]
    assert main([*words, "--output", str(accepted / "none")]) == 65
    assert "precision int8" in capfd.readouterr().err


@pytest.mark.parametrize("folder", ["exported", "int8"])
def test_a_flipped_byte_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], folder: str) -> None:
    make(tmp_path)
    path = next((tmp_path / folder / "models").glob("*.bin"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert gate(tmp_path) == 65
    assert "was modified after its model card was written" in capfd.readouterr().err


def test_a_graph_that_cannot_be_read_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    card = read_card(tmp_path / "int8")
    path = tmp_path / "int8/models/int8.xml"
    path.write_bytes(path.read_bytes()[:200])
    write_card(tmp_path / "int8", card)
    assert gate(tmp_path) == 65
    assert "models/int8.xml" in capfd.readouterr().err


def test_an_empty_validation_split_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    shutil.rmtree(tmp_path / "data")
    training_set(tmp_path / "data", ("train", "validation"), unlabelled=(1,))
    assert gate(tmp_path) == 65
    assert "no validation case for the decision" in capfd.readouterr().err


def test_one_patient_is_too_few_to_accept_anything(tmp_path: Path) -> None:
    make(tmp_path)
    shutil.rmtree(tmp_path / "data")
    training_set(tmp_path / "data", ("train", "validation"))
    assert gate(tmp_path, *ANY_SPEED) == 0
    decision = decision_of(tmp_path)
    assert decision["precision"] == "float32"
    assert "fewer than two patients" in decision["reason"]


def test_cases_of_another_spacing_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    path = tmp_path / "data/cohort.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spacing_mm": [1.0, 1.0, 1.0]}))
    assert gate(tmp_path) == 65
    assert "do not match the model" in capfd.readouterr().err


def test_a_machine_without_any_runtime_is_reported_the_extra(
    accepted: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    assert gate(accepted, output="none") == 69
    assert "medweave[gate]" in capfd.readouterr().err
    assert not (accepted / "none").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--dice-tolerance", "-1"),
        ("--min-speedup", "0.5"),
        ("--pairs", "0"),
        ("--seed", "-1"),
        ("--max-slowdown", "nan"),
    ],
)
def test_options_that_cannot_be_used_are_refused(accepted: Path, options: tuple[str, ...]) -> None:
    assert gate(accepted, *options, output="none") == 2


def test_an_output_that_exists_is_not_overwritten(accepted: Path) -> None:
    before = (accepted / "accepted.json").read_bytes()
    assert gate(accepted) == 2
    assert (accepted / "accepted.json").read_bytes() == before


def words_of(accepted: Path, pairs: int) -> list[str]:
    """A decision whose output is `accepted` in the working directory."""
    words = ["gate", "--exported-model", str(accepted / "exported"), "--candidates", str(accepted / "int8")]
    return [*words, "--training-set", str(accepted / "data"), "--output", "accepted", "--pairs", str(pairs)]


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(accepted: Path, tmp_path: Path) -> None:
    process = started(words_of(accepted, 1000000), folder=tmp_path)
    wait_for_line(process, "volume 5/")
    assert interrupted(process)[0] == 130
    assert names_below(tmp_path) == []


def test_a_full_disk_is_reported_and_leaves_nothing(accepted: Path, tmp_path: Path) -> None:
    with nearly_full_disk(tmp_path, 1000) as output:
        code = main([*words_of(accepted, 1), "--num-threads", "1"])
    assert (code, names_below(tmp_path)) == (74, []), output.getvalue()
