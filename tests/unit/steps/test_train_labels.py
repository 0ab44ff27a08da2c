"""`train` and `train-distributed` with several labels, regions and voxels without annotation, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from medweave_core.contracts.labels import CodedTerm, Label
from medweave_core.contracts.model import OutputContract
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import load_network
from medweave_steps.tasks.segmentation.training import name_of
from medweave_steps.train.command import task_of
from medweave_steps.train.network import seeded_network
from medweave_steps.training.distributed.group import Alone
from support import label_work
from support.label_set import LABELS, REGION_WORDS, REGIONS, label_set
from support.strategy_work import by_two_ranks, largest_difference, options
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights

LEARNS = (
    "--steps",
    "60",
    "--epoch-steps",
    "20",
    "--batch-size",
    "4",
    "--patch-shape",
    "16",
    "16",
    "16",
    "--learning-rate",
    "0.02",
)


def train(folder: Path, data: Path, *words: str, name: str = "model") -> int:
    """Run the verb in this process."""
    files = ["--training-set", str(data), "--output", str(folder / name), "--training-log", str(folder / f"{name}_log")]
    files += ["--run-report", str(folder / f"{name}_report.json"), "--num-threads", "1"]
    return main(["train", *files, *TINY, *words])


def dices(folder: Path, name: str) -> list[float]:
    points = json.loads((folder / "model_log" / "curves.json").read_text())
    return [point[name] for point in points if name in point]


@pytest.fixture(scope="module")
def exclusive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ and the model/ of a training with softmax."""
    folder = tmp_path_factory.mktemp("exclusive")
    label_set(folder / "data")
    assert train(folder, folder / "data", *LEARNS) == 0
    return folder


@pytest.mark.slow
def test_softmax_learns_every_label_and_the_card_names_them(exclusive: Path) -> None:
    card = read_card(exclusive / "model")
    assert (card.name, card.task) == (
        "edema-tumor-core-enhancing", "Segmentation of edema, tumor core, enhancing in MR (FLAIR, T1w)",
    )  # fmt: skip
    assert (card.labels, card.output, card.task_name) == (LABELS, OutputContract(activation="softmax"), "segmentation")
    assert card.architecture["arguments"]["out_channels"] == 4
    assert len(card.postprocessing.by_output) == 3
    names = ("edema", "tumor_core", "enhancing")
    by_label = [card.metrics[f"validation_dice_{name}"] for name in names]
    assert card.metrics["validation_dice"] == pytest.approx(sum(filter(None, by_label)) / 3, abs=1e-4)
    for name in names:
        curve = dices(exclusive, f"dice_{name}")
        assert curve[-1] > 0.7
        assert curve[-1] > curve[0]
    network = load_network(exclusive / "model", card)
    assert network(torch.zeros(1, 2, 8, 8, 8)).shape == (1, 4, 8, 8, 8)
    report = json.loads((exclusive / "model_report.json").read_text())
    assert list(report["results"]["postprocessing"]["by_output"]) == ["edema", "tumor core", "enhancing"]
    assert {f"dice_{name}" for name in names} < set(report["cases"][0])


@pytest.mark.slow
def test_regions_learn_unions_of_labels_beside_voxels_without_annotation(tmp_path: Path) -> None:
    data = label_set(tmp_path / "data", ignored_planes=3)
    assert train(tmp_path, data, *LEARNS, *REGION_WORDS) == 0
    card = read_card(tmp_path / "model")
    assert card.output == OutputContract(regions=REGIONS)
    assert card.architecture["arguments"]["out_channels"] == 3
    assert card.training["regions"] == list(REGION_WORDS[1:])
    for name in ("whole_tumor", "core", "enhancing_tumor"):
        assert dices(tmp_path, f"dice_{name}")[-1] > 0.7


@pytest.mark.slow
def test_a_resumed_training_of_several_labels_equals_an_uninterrupted_one(exclusive: Path, tmp_path: Path) -> None:
    data, saving = exclusive / "data", ("--checkpoint-folder", str(tmp_path / "saved"), "--checkpoint-interval", "3")
    assert train(tmp_path, data, *saving, name="whole") == 0
    before = tmp_path / "saved" / "checkpoint-before.pt"  # of step 3
    assert train(tmp_path, data, "--resume-from", str(before), name="resumed") == 0
    assert_equal_weights(tmp_path / "whole", tmp_path / "resumed")
    assert read_card(tmp_path / "whole").metrics == read_card(tmp_path / "resumed").metrics


@pytest.mark.slow
def test_two_ranks_train_with_softmax_what_one_process_trains(tmp_path: Path) -> None:
    values = {"window_shape": (24, 20, 16), "dice": "sample", "batch_size": 5}
    plain = options(label_set(tmp_path / "plain"), **values)
    masked = options(label_set(tmp_path / "masked", ignored_planes=6), **values)
    ranks = {"strategy": "ddp", "ranks": 2}
    ours = {name: options(one.training_set, **values, **ranks) for name, one in (("plain", plain), ("masked", masked))}
    local = options(plain.training_set, **values, strategy="local-sgd", ranks=2, sync_interval=1)
    by_ranks = by_two_ranks(label_work.all_trained, {**ours, "local": local})
    for name, alone in (("plain", plain), ("masked", masked), ("local", plain)):
        one, other = label_work.trained(alone, Alone()), by_ranks[name]
        np.testing.assert_allclose(other.pop("dice"), one.pop("dice"), atol=2e-3)
        assert largest_difference(one, other) < 1e-5, name
        assert one["loss"][-1] < one["loss"][0]


@pytest.mark.slow
def test_replicas_continue_a_model_of_several_labels(
    exclusive: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train-distributed", "--trained-model", str(exclusive / "model"), "--rounds", "1", "--steps-per-round", "2",
        "--batch-size", "2", "--patch-shape", "8", "8", "8", "--precision", "float32", "--num-threads", "1",
        "--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "report.json"), "--output", str(tmp_path / "model"),
    ]  # fmt: skip
    assert main([*words, "--training-set", str(exclusive / "data")]) == 0
    parent, card = read_card(exclusive / "model"), read_card(tmp_path / "model")
    assert (card.labels, card.output, len(card.postprocessing.by_output)) == (parent.labels, parent.output, 3)
    assert set(card.metrics) == set(parent.metrics)
    other = label_set(tmp_path / "other", labels=LABELS[:2])
    words[words.index("--output") + 1] = str(tmp_path / "second")
    assert main([*words, "--training-set", str(other)]) == 65
    message = capfd.readouterr().err
    assert "the labels of the training set are not those that the model predicts" in message
    assert "expected: label 1 (edema), 2 (tumor core), 4 (enhancing)" in message


@pytest.mark.parametrize("counted", [True, False])
def test_a_label_without_a_training_case_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], counted: bool
) -> None:
    data = label_set(tmp_path / "data", values=(0, 1, 2), counted=counted)
    assert train(tmp_path, data) == 65
    message = capfd.readouterr().err
    assert "no training case has the label enhancing" in message
    assert "2 training cases without a voxel of label 4 (enhancing)" in message
    assert not (tmp_path / "model").exists()


def test_regions_that_do_not_fit_the_labels_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = label_set(tmp_path / "data")
    assert train(tmp_path, data, "--regions", "whole tumor:1,2,3", "core:2,3") == 65
    assert "labels 3, 4 in a region and not declared, or declared and in no region" in capfd.readouterr().err
    assert train(tmp_path, data, "--regions", "whole tumor=1,2,4") == 2
    assert "invalid value of --regions" in capfd.readouterr().err


def test_a_network_of_one_output_is_refused_for_several_labels(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = label_set(tmp_path / "data")
    words = ("--network", "distmis-as-described", "--patch-shape", "16", "16", "16", "--window-shape", "24", "24", "16")
    assert train(tmp_path, data, *words) == 2
    message = capfd.readouterr().err
    assert "the network 'distmis-as-described' has one output channel" in message
    assert "choose --network unet" in message


def test_one_label_keeps_one_logit_whatever_regions_the_cohort_declared(tmp_path: Path) -> None:
    data = training_set(tmp_path / "data")
    cohort = json.loads((data / "cohort.json").read_text())
    cohort["regions"] = [{"name": "whole", "values": [1, 2]}]
    (data / "cohort.json").write_text(json.dumps(cohort))
    assert train(tmp_path, data) == 0
    card = read_card(tmp_path / "model")
    assert card.output == OutputContract()
    assert card.postprocessing.by_output == ()
    assert [label.name for label in card.labels] == ["nodule"]


@pytest.mark.parametrize("words", [(), REGION_WORDS[1:]])
def test_an_untrained_network_predicts_every_label_as_rare(tmp_path: Path, words: tuple[str, ...]) -> None:
    config = options(label_set(tmp_path / "data"), regions=words)
    task = task_of(config, open_prepared(config.training_set))
    network = seeded_network(config, task, channels=2).eval()
    with torch.inference_mode():
        logits = network(torch.zeros(1, 2, 8, 8, 8))
    probability = logits.sigmoid() if words else logits.softmax(1)[:, 1:]
    assert probability.shape[1] == 3
    assert probability.mean() < 0.05


def test_the_default_name_has_the_common_anatomy_once() -> None:
    brain = CodedTerm(value="12738006", scheme="SCT", meaning="Brain")
    labels = [Label(value=value, name=f"part {value}", anatomy=brain) for value in (1, 2, 3, 4)]
    assert name_of(labels[:1]) == "brain-part-1"
    assert name_of(labels[:2]) == "brain-part-1-part-2"
    assert name_of(labels) == "brain-part-1-part-2-part-3-and-1-more"
    liver = Label(value=5, name="lesion", anatomy=CodedTerm(value="10200004", scheme="SCT", meaning="Liver"))
    assert name_of([labels[0], liver]) == "brain-part-1-liver-lesion"
