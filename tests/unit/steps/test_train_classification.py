"""Trainings of classifications by the verb: model card, equal weights by ranks and after a resume, and refusals."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_steps.cli import build_parser, load_verb, main
from medweave_steps.io.model.folder import read_card
from medweave_steps.metrics.classification import METRICS
from medweave_steps.runtime.options import read_options
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.inputs import describe_demo_recipe
from support.image_set import CLASSES, TINY, image_set, installed_network
from support.weights import assert_equal_weights, weights


@pytest.fixture(scope="module", autouse=True)
def _network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed_network(tmp_path_factory.mktemp("site") / "installed"):
        yield


def train(folder: Path, *options: str, data: Path, name: str = "model") -> int:
    """Run the verb in this process."""
    words = ["train", "--training-set", str(data), "--output", str(folder / name), *TINY]
    words += ["--training-log", str(folder / f"{name}_log"), "--run-report", str(folder / f"{name}.json")]
    return main([*words, *options])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_set(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert train(folder, data=data) == 0
    return folder


def report_of(folder: Path, name: str = "model") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return document


def test_the_card_describes_the_classification(trained: Path) -> None:
    card = read_card(trained / "model")
    assert (card.name, card.task_name) == ("mel-nv-bcc", "classification")
    assert card.task == "Classification into 3 classes (MEL, NV, BCC) in photography"
    assert tuple(one.name for one in card.classes) == CLASSES
    assert (card.labels, card.output.activation, card.postprocessing.by_output) == ((), "softmax", ())
    assert card.input.patch_shape == (16, 12, 1)
    assert card.architecture["arguments"]["out_channels"] == 3
    assert card.training["num_training_cases_by_class"] == {"MEL": 3, "NV": 3, "BCC": 3}
    assert card.training["classes"] == list(CLASSES)
    for name in ("accuracy", "macro_f1", "expected_calibration_error", "f1_mel", "roc_auc_nv", "average_precision_bcc"):
        assert card.metrics[f"validation_{name}"] is not None
    assert not (trained / "model" / "configs" / "inference.json").exists()
    outputs = json.loads((trained / "model" / "configs" / "metadata.json").read_text())["network_data_format"][
        "outputs"
    ]
    assert outputs["pred"]["channel_def"] == {"0": "MEL", "1": "NV", "2": "BCC"}


def test_the_report_has_predictions_and_calibration(trained: Path) -> None:
    report = report_of(trained)
    assert [case["classes"] for case in report["cases"]] == [[name] for name in CLASSES] * 2
    assert sum(report["cases"][0]["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert any("expected calibration error" in notice for notice in report["notices"])
    temperature = read_card(trained / "model").postprocessing.temperature
    assert report["results"]["postprocessing"]["temperature"] == temperature != 1
    curve = json.loads((trained / "model_log" / "curves.json").read_text())
    assert [point["step"] for point in curve if "macro_f1" in point] == [2, 4, 6]


# Ranks import all of MONAI for a network of another package, but nothing of it for layers.
LAYERS = """\
layers:
  - {kind: conv, channels: 8, kernel: 3, stride: 2}
  - {kind: norm, type: instance}
  - {kind: activation, function: relu}
  - {kind: pool, type: average, size: all}
  - {kind: dense, units: outputs}
"""


@pytest.mark.slow
def test_two_ranks_train_what_one_process_does(data: Path, tmp_path: Path) -> None:
    (tmp_path / "layers.yml").write_text(LAYERS)
    plain = ("--network", "layer-stack", "--network-file", str(tmp_path / "layers.yml"))
    plain += ("--optimizer", "sgd", "--momentum", "0", "--schedule", "constant", "--learning-rate", "0.1")
    plain += ("--batch-size", "5", "--sampling", "natural", "--class-weights", "balanced", "--label-smoothing", "0.1")
    assert train(tmp_path, *plain, data=data, name="one") == 0
    ranks = ("--strategy", "ddp", "--ranks", "2", "--threads-per-rank", "1")
    assert train(tmp_path, *plain, *ranks, data=data, name="two") == 0
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert max(float(np.abs(one[name] - two[name]).max()) for name in one) <= 1e-6
    figures = [report_of(tmp_path, name)["results"]["metrics"] for name in ("one", "two")]
    assert figures[0] == pytest.approx(figures[1], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [False, True])
def test_a_resumed_training_has_the_weights_of_a_whole_one(data: Path, tmp_path: Path, epochs: bool) -> None:
    options = ("--epochs", "2", "--sampling", "natural") if epochs else ("--flip-axes", "I", "J")
    saving = ("--checkpoint-folder", str(tmp_path / "saved"), "--checkpoint-interval", "4")
    assert train(tmp_path, *options, *saving, data=data, name="whole") == 0
    resume = ("--resume-from", str(tmp_path / "saved"))
    assert train(tmp_path, *options, *resume, data=data, name="resumed") == 0
    assert any("resumed from a checkpoint at step 4 of 6" in text for text in report_of(tmp_path, "resumed")["notices"])
    assert_equal_weights(tmp_path / "whole", tmp_path / "resumed")


@pytest.mark.slow
def test_findings_that_occur_together_have_a_sigmoid_and_a_threshold_each(tmp_path: Path) -> None:
    data = image_set(tmp_path / "data", is_multi_label=True, of_split={"train": 10, "validation": 10})
    assert train(tmp_path, "--learning-rate", "0.02", data=data) == 0
    card = read_card(tmp_path / "model")
    assert card.output.activation == "sigmoid"
    assert len(card.postprocessing.by_output) == 3
    assert "3 findings" in card.task
    assert set(report_of(tmp_path)["results"]["postprocessing"]["by_output"]) == set(CLASSES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--class-weights", "balanced"), "none, or set --sampling natural"),
        (("--label-smoothing", "1"), "0 or more, and less than 1"),
        (("--flip-axes", "X"), "some of I J K"),
        (("--regions", "a:1"), "the option applies only to --task segmentation"),
        (("--lesion-share", "0.5"), "the option applies only to --task segmentation"),
        (("--window-shape", "16", "16", "1"), "16 12 1, the size of the images"),
        (("--preset", "auto"), "demo: auto plans patches, and the task classification takes whole images"),
        (("--augmentation", "full"), "basic with --task classification"),
        (("--epochs", "1"), "natural: with --epochs, each case is used exactly once per epoch"),
    ],
)
def test_options_without_effect_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert train(tmp_path, *options, data=data) == 2
    assert message in capfd.readouterr().err


@pytest.mark.slow
def test_a_trained_classification_learns_further_on_replicas(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ["train-distributed", "--training-set", str(data), "--trained-model", str(trained / "model")]
    words += ["--output", str(tmp_path / "further"), "--training-log", str(tmp_path / "log"), "--num-threads", "1"]
    words += ["--run-report", str(tmp_path / "report.json"), "--rounds", "1", "--steps-per-round", "2"]
    assert main([*words, "--replicas", "2", "--batch-size", "4", "--precision", "float32"]) == 0
    card = read_card(tmp_path / "further")
    assert (card.task_name, card.classes) == ("classification", read_card(trained / "model").classes)
    assert card.metrics["validation_macro_f1"] is not None


@pytest.mark.slow
def test_options_that_save_time_or_memory_do_not_change_the_weights(trained: Path, data: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--recompute", "--data-workers", "1", data=data) == 0
    assert_equal_weights(trained / "model", tmp_path / "model")


@pytest.mark.slow
def test_a_training_in_bfloat16_is_validated_too(data: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--precision", "bfloat16", data=data) == 0
    assert read_card(tmp_path / "model").training["precision"] == "bfloat16"


@pytest.mark.slow
def test_the_log_loss_selects_weights_and_stops_early_where_that_is_wanted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = itertools.chain((0.9, 0.5, 0.7, 0.6), itertools.repeat(1.0))
    monkeypatch.setitem(METRICS, "log_loss", lambda _predictions: next(losses))  # type: ignore[arg-type]
    often = ("--epoch-steps", "1", "--validation-interval", "1", "--patience", "2")
    assert train(tmp_path, *often, "--best-by", "loss", data=data) == 0
    training = read_card(tmp_path / "model").training
    assert [training[name] for name in ("best_by", "best_step", "steps_done", "stopped_early")] == ["loss", 2, 4, True]


@pytest.mark.slow
def test_folds_by_patient_have_a_model_each(data: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--folds", "2", "--steps", "2", data=data) == 0
    table = json.loads((tmp_path / "model" / "cross_validation.json").read_text())
    assert "macro_f1" in json.dumps(table)
    assert read_card(tmp_path / "model" / "fold-1").classes == read_card(tmp_path / "model" / "fold-0").classes


def test_a_network_for_segmentation_is_refused(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shapes = ("--channels", "4", "8", "--strides", "1", "--network", "unet")
    assert train(tmp_path, *shapes, data=data) == 2
    assert "the network 'unet' does not fit the task 'classification'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": [("MEL",), ("NV",), ("MEL",), ("NV",)]}, "no training case has the class BCC"),
        ({"classes": [("MEL",), ("NV",), ("BCC",), None]}, "no class for case-03"),
        ({"classes": [("MEL",), ("NV",), ("BCC",), ("SCC",)]}, "the classes of case-03 cannot be used"),
        ({"classes": [("MEL",), ("NV",), ("BCC",), ("MEL", "NV")]}, "exactly one of MEL, NV, BCC"),
        ({"shapes": {3: (20, 12, 1)}}, "16 x 12 x 1 voxels in case-00; 20 x 12 x 1 voxels in case-03"),
        ({"of_split": {"train": 4}}, "the training set has no validation case"),
        ({"of_split": {"validation": 4}}, "the training set has no training case"),
    ],
)
def test_cases_that_cannot_be_used_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    image_set(tmp_path / "data", **{"of_split": {"train": 3, "validation": 1}} | changes)
    assert train(tmp_path, data=tmp_path / "data") == 65
    assert message in capfd.readouterr().err


def test_a_training_set_without_classes_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    image_set(tmp_path / "data", **{"classes": [None] * 15})
    cohort = json.loads((tmp_path / "data" / "cohort.json").read_text())
    (tmp_path / "data" / "cohort.json").write_text(json.dumps(cohort | {"classes": []}))
    assert train(tmp_path, data=tmp_path / "data") == 65
    assert "add a table of targets to the cohort" in capfd.readouterr().err


def test_segmentation_of_classes_names_the_task_that_fits(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--training-set", str(data), "--output", str(tmp_path / "model"), "--steps", "1"]) == 65
    assert "train with --task classification" in capfd.readouterr().err


def test_the_default_recipe_of_a_classification_is_for_synthetic_images(data: Path) -> None:
    parser = build_parser(load_verb("train"))
    words = ["--training-set", str(data), "--output", "model", "--task", "classification"]
    config = read_options(TrainConfig, parser.parse_args(words))
    assert config.has_demo_recipe
    assert "2000 steps of 10 cases, learning rate 0.005, network mobilenet" in describe_demo_recipe(config)
    assert not read_options(TrainConfig, parser.parse_args([*words, "--steps", "400"])).has_demo_recipe
