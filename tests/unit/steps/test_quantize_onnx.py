"""`medweave-step quantize --method three-step` and `ort-static`: the ONNX candidates and the refusals."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import card_sha256, read_card, write_card
from medweave_steps.quantize.command import QuantizeConfig
from medweave_steps.runtime.options import build_config
from medweave_steps.tasks.segmentation.calibration import choose_windows
from support.classified import write_classifier
from support.exported import export, openvino_logits, quantize
from support.image_set import image_set
from support.model_folders import TINY_UNET, tiny_card, trained_model
from support.onnx_networks import onnx_outputs
from support.processes import names_below, nearly_full_disk
from support.training_set import training_set

METHODS = ("three-step", "ort-static")
WIDER = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "channels": [16, 32]}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trained/, exported/, data/, three-step/ and ort-static/."""
    folder = tmp_path_factory.mktemp("quantize-onnx")
    trained_model(folder / "trained", architecture=WIDER)
    training_set(folder / "data")
    assert export(folder) == 0
    for method in METHODS:
        assert quantize(folder, "--method", method, output=method) == 0
    return folder


def linked(made: Path, folder: Path, *names: str) -> Path:
    """Link folders of `made` into another one; return it."""
    for name in names:
        (folder / name).symlink_to(made / name)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_the_candidate_is_one_onnx_file_and_names_its_parent(made: Path, method: str) -> None:
    exported, card = read_card(made / "exported"), read_card(made / method)
    assert card.parent_sha256 == card_sha256(exported)
    assert (card.precision, set(card.files), card.metrics) == ("int8", {"models/int8.onnx"}, {})
    assert (card.input, card.postprocessing, card.labels) == (exported.input, exported.postprocessing, exported.labels)
    onnx.checker.check_model(onnx.load(made / method / "models/int8.onnx"), full_check=True)
    results = json.loads((made / f"{method}.json").read_text())["results"]
    assert results["calibration"] == card.notes["calibration"]
    assert (results["calibration"]["method"], results["calibration"]["windows"]) == (method, 6)
    assert results["quantized_layers"] == {"Conv": 5, "ConvTranspose": 1}
    assert results["bytes"]["int8"] < 0.55 * results["bytes"]["float32"]


@pytest.mark.parametrize("method", METHODS)
def test_both_runtimes_compute_nearly_the_same_as_float32(made: Path, method: str) -> None:
    cases = open_prepared(made / "data").cases("validation")
    image = choose_windows(cases, tiny_card(), num_windows=1, seed=5)[0].values_BCIJK
    exact, int8 = onnx_outputs(made / "exported/models/model.onnx", image), made / method / "models/int8.onnx"
    for rough in (onnx_outputs(int8, image), openvino_logits(int8, image)):
        assert rough.shape == exact.shape
        assert 0 < np.abs(rough - exact).max() < 0.2 * np.ptp(exact)


def test_three_steps_report_layers_memory_and_the_integer_reference(made: Path) -> None:
    results = json.loads((made / "three-step.json").read_text())["results"]
    assert results["calibration"]["threshold"] == "minimum-mse"
    parity, parameters = results["integer_parity"], results["parameters"]
    assert parity["different_share"] <= 1e-3
    assert parity["largest_difference"] <= 1
    assert parity["activations"] > 1000
    assert parameters["int8_bits"] == 8 * parameters["weights"] + 16 * parameters["biases"]
    assert 3.9 < parameters["ratio"] < 4
    assert len(results["layers"]) == 6
    # Batch norms are folded; PReLU, sums and concatenations compute in float32.
    assert "BatchNormalization" not in results["other_operators"]
    assert (results["other_operators"]["PRelu"], results["other_operators"]["Concat"]) == (3, 1)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_inputs_give_the_same_candidate(made: Path, method: str) -> None:
    assert quantize(made, "--method", method, output=f"{method}-again") == 0
    assert card_sha256(made / f"{method}-again") == card_sha256(made / method)


@pytest.mark.parametrize("threshold", ["max", "percentile", "kl"])
def test_the_threshold_changes_the_candidate(made: Path, threshold: str) -> None:
    assert quantize(made, "--method", "three-step", "--threshold", threshold, output=threshold) == 0
    assert read_card(made / threshold).notes["calibration"]["threshold"] == threshold
    steps = [json.loads((made / f"{name}.json").read_text())["results"]["layers"] for name in ("three-step", threshold)]
    assert [layer["input_step"] for layer in steps[0]] != [layer["input_step"] for layer in steps[1]]


def test_three_steps_calibrate_on_200_windows_by_default(made: Path) -> None:
    paths = {"exported_model": made / "exported", "training_set": made / "data", "output": made / "none"}
    windows = {method: build_config(QuantizeConfig, {**paths, "method": method}).windows for method in METHODS}
    assert windows == {"three-step": 200, "ort-static": 16}
    assert build_config(QuantizeConfig, paths).windows == 16
    assert build_config(QuantizeConfig, {**paths, "method": "three-step", "windows": 7}).windows == 7


@pytest.mark.parametrize("method", METHODS)
def test_a_classification_is_quantized(tmp_path: Path, method: str) -> None:
    image_set(tmp_path / "data")
    write_classifier(tmp_path / "exported")
    assert quantize(tmp_path, "--method", method, output="int8") == 0
    card = read_card(tmp_path / "int8")
    assert set(card.notes["calibration"]["windows_by_class"]) >= {one.name for one in card.classes}
    assert json.loads((tmp_path / "int8.json").read_text())["results"]["quantized_layers"] == {"Gemm": 1}
    image = np.random.default_rng(0).random((1, card.input.channels, *card.input.patch_shape), dtype=np.float32) * 0.9
    exact, rough = (
        onnx_outputs(tmp_path / name, image) for name in ("exported/models/model.onnx", "int8/models/int8.onnx")
    )
    assert np.abs(exact - rough).max() < 0.2


@pytest.mark.parametrize("method", METHODS)
def test_a_training_set_without_training_cases_is_refused(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], method: str
) -> None:
    training_set(tmp_path / "data", ("validation",))
    assert quantize(linked(made, tmp_path, "exported"), "--method", method, output="int8") == 65
    assert "no training case for calibration" in capfd.readouterr().err
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("model", "message"),
    [("trained", "has no models/model.onnx"), ("three-step", "cannot be quantized"), ("ort-static", "precision int8")],
)
def test_a_model_that_is_no_exported_float32_is_refused(
    made: Path, capfd: pytest.CaptureFixture[str], method: str, model: str, message: str
) -> None:
    assert quantize(made, "--method", method, model=model, output="none") == 65
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_an_operator_that_cannot_be_quantized_is_named_with_its_layer(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], method: str
) -> None:
    linked(made, tmp_path, "data")
    shutil.copytree(made / "exported", tmp_path / "exported")
    path = tmp_path / "exported/models/model.onnx"
    document = onnx.load(path)
    node = next(node for node in document.graph.node if node.op_type == "PRelu")
    node.op_type, node.domain = "Swish", "org.example"
    onnx.save(document, path)
    write_card(tmp_path / "exported", read_card(tmp_path / "exported", verify=False))
    assert quantize(tmp_path, "--method", method, output="int8") == 65
    error = capfd.readouterr().err
    assert "has an operator that cannot be quantized" in error
    assert f"operator Swish of layer {node.name} (org.example)" in error
    assert names_below(tmp_path / "int8") == []


@pytest.mark.parametrize(
    ("method", "options", "applies_to"),
    [
        ("three-step", ("--preset", "performance"), "nncf"),
        ("three-step", ("--bias-correction",), "nncf"),
        ("ort-static", ("--no-float-input-layer",), "nncf"),
        ("ort-static", ("--threshold", "kl"), "three-step"),
        ("nncf", ("--threshold", "kl"), "three-step"),
    ],
)
def test_options_of_another_method_are_refused(
    made: Path, capfd: pytest.CaptureFixture[str], method: str, options: tuple[str, ...], applies_to: str
) -> None:
    assert quantize(made, "--method", method, *options, output="none") == 2
    assert f"the option applies only to --method {applies_to}" in capfd.readouterr().err


def test_an_unknown_method_is_refused(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert quantize(made, "--method", "four-step", output="none") == 2
    assert "three-step" in capfd.readouterr().err


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_a_machine_without_the_libraries_is_reported_the_extra(
    made: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, method: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert quantize(made, "--method", method, output="none") == 69
    assert "medweave[quantize]" in capfd.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_a_full_disk_is_reported_and_leaves_nothing(made: Path, tmp_path: Path, method: str) -> None:
    inputs = ["--exported-model", str(made / "exported"), "--training-set", str(made / "data")]
    with nearly_full_disk(tmp_path, 2000):
        words = ["quantize", *inputs, "--output", "int8", "--method", method, "--windows", "2", "--num-threads", "1"]
        assert main(words) == 74
    assert names_below(tmp_path) == []
