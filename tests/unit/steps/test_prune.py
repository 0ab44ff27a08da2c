"""`prune` writes a smaller or sparser model with its architecture, figures before and after, and resumes from checkpoints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from medweave_steps.cli import main
from medweave_steps.io.model.folder import card_sha256, read_card, write_card
from medweave_steps.io.model.network import build_network
from medweave_steps.prune import structured
from support.image_set import image_set
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights
from support.weights import weights as arrays

pytestmark = pytest.mark.slow

NETWORK = (
    "--channels",
    "8",
    "16",
    "--strides",
    "2",
    "--steps",
    "40",
    "--epoch-steps",
    "20",
    "--validation-interval",
    "2",
)
PRUNING = (
    "--batch-size", "2", "--epoch-steps", "2", "--plateau-epochs", "1", "--budget-epochs", "6", "--learning-rate", "0.001",
    "--optimizer", "adam", "--tolerance", "0.6", "--precision", "float32", "--num-threads", "1",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _every_removal_counts() -> Iterator[None]:
    """Every group saves half of the time: the networks of these tests are too small for measured differences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structured, "paired_seconds", lambda networks, _: [1.0, *(0.5 for _ in networks[1:])])
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ and model/."""
    folder = tmp_path_factory.mktemp("made")
    training_set(folder / "data", ("train", "train", "validation", "validation"))
    words = ("train", "--training-set", folder / "data", "--output", folder / "model", "--training-log", folder / "log")
    assert main([*map(str, words), *TINY, *NETWORK, "--num-threads", "1", "--run-report", str(folder / "t.json")]) == 0
    return folder


def prune(made: Path, folder: Path, *words: object, name: str = "pruned", model: Path | None = None) -> int:
    files = ("--training-set", made / "data", "--trained-model", model or made / "model", "--output", folder / name)
    logs = ("--training-log", folder / f"{name}_log", "--run-report", folder / f"{name}.json")
    return main(["prune", *map(str, (*files, *logs)), *PRUNING, *map(str, words)])


def facts(folder: Path, name: str = "pruned") -> Mapping[str, Any]:
    figures: Mapping[str, Any] = json.loads((folder / f"{name}.json").read_text())["results"]["pruning"]
    return figures


@pytest.fixture(scope="module")
def serene(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pruned/, by removal of channels."""
    folder = tmp_path_factory.mktemp("serene")
    assert prune(made, folder) == 0
    return folder


@pytest.fixture(scope="module")
def lobster(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pruned/, by single weights, and the checkpoint saved/."""
    folder = tmp_path_factory.mktemp("lobster")
    assert prune(made, folder, "--method", "lobster", "--checkpoint-folder", folder / "saved") == 0
    return folder


def test_removed_channels_make_a_smaller_network_that_the_card_describes(made: Path, serene: Path) -> None:
    source, card, figures = read_card(made / "model"), read_card(serene / "pruned"), facts(serene)
    assert figures["is_pruned"]
    assert figures["before"].keys() == figures["after"].keys() == {
        "parameters", "sparsity", "flops", "bytes", "seconds", "metrics",
    }  # fmt: skip
    for name in ("parameters", "flops", "bytes"):
        assert figures["after"][name] < figures["before"][name]
    assert figures["validation_loss"]["after"] <= 1.6 * figures["validation_loss"]["before"]
    assert figures["before"]["metrics"].keys() == figures["after"]["metrics"].keys()
    assert card.notes["pruning"]["source_sha256"] == card.parent_sha256 == card_sha256(source)
    assert card.architecture["channels"]
    assert {name: card.architecture[name] for name in ("class", "arguments")} == source.architecture
    shapes = {name: tuple(tensor.shape) for name, tensor in build_network(card.architecture).state_dict().items()}
    assert shapes == {name: array.shape for name, array in arrays(serene / "pruned").items()}
    assert card.metrics == {f"validation_{name}": value for name, value in figures["after"]["metrics"].items()}


def test_a_pruned_model_is_exported_with_its_notes(serene: Path, tmp_path: Path) -> None:
    words = (
        "export",
        "--trained-model",
        serene / "pruned",
        "--output",
        tmp_path / "out",
        "--run-report",
        tmp_path / "r.json",
    )
    assert main([*map(str, words), "--num-threads", "1"]) == 0
    exported, pruned = read_card(tmp_path / "out"), read_card(serene / "pruned")
    assert exported.notes["pruning"] == pruned.notes["pruning"]
    assert exported.parent_sha256 == card_sha256(pruned)


def test_training_begins_with_the_weights_of_a_pruned_model(made: Path, serene: Path, tmp_path: Path) -> None:
    words = ("--training-set", made / "data", "--output", tmp_path / "model", "--training-log", tmp_path / "log")
    words += ("--run-report", tmp_path / "r.json", "--initial-weights", serene / "pruned", "--num-threads", "1")
    assert main(["train", *TINY, *NETWORK, *map(str, words)]) == 0
    card, pruned = read_card(tmp_path / "model"), read_card(serene / "pruned")
    assert card.architecture == pruned.architecture
    assert card.training["initial_weights"]["num_loaded"] == len(arrays(serene / "pruned"))


def test_a_pruned_model_is_pruned_again(made: Path, serene: Path, tmp_path: Path) -> None:
    assert prune(made, tmp_path, model=serene / "pruned") == 0
    again, before = read_card(tmp_path / "pruned"), read_card(serene / "pruned")
    assert again.notes["pruning"]["source_sha256"] == card_sha256(before)
    assert again.architecture["channels"].keys() >= before.architecture["channels"].keys()


def test_a_classification_is_pruned_and_judged_by_its_own_metrics(tmp_path: Path) -> None:
    image_set(tmp_path / "data", of_split={"train": 8, "validation": 6})
    words = ("--training-set", tmp_path / "data", "--output", tmp_path / "model", "--training-log", tmp_path / "log")
    network = (
        "--task",
        "classification",
        "--network",
        "mobilenet",
        "--width",
        "0.1",
        "--steps",
        "6",
        "--batch-size",
        "4",
    )
    report = ("--run-report", tmp_path / "t.json", "--num-threads", "1", "--epoch-steps", "3")
    assert main(["train", *map(str, (*words, *network, *report))]) == 0
    assert prune(tmp_path, tmp_path, "--budget-epochs", "2", "--batch-size", "4") == 0
    figures = facts(tmp_path)
    assert figures["is_pruned"]
    assert figures["after"]["flops"] < figures["before"]["flops"]
    assert "macro_f1" in figures["after"]["metrics"]


@pytest.mark.parametrize("method", ["lobster", "generic"])
def test_single_weights_leave_parameters_and_operations_and_make_a_sparse_network(
    made: Path, lobster: Path, tmp_path: Path, method: str
) -> None:
    folder = lobster if method == "lobster" else tmp_path
    if method != "lobster":
        assert prune(made, folder, "--method", method) == 0
    figures = facts(folder)
    assert figures["after"]["sparsity"] > 0.3
    assert {name: figures["after"][name] for name in ("parameters", "flops", "bytes")} == {
        name: figures["before"][name] for name in ("parameters", "flops", "bytes")
    }
    assert read_card(folder / "pruned").architecture == read_card(made / "model").architecture


def test_a_tolerance_that_nothing_meets_leaves_the_model_unchanged_and_says_so(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from medweave_steps.prune.loop import Pruning

    # Every other network than the trained one is worse.
    monkeypatch.setattr(Pruning, "validation_loss", lambda self, network: 1.0 + (network is not self.trained))
    assert prune(made, tmp_path) == 0
    assert (
        "nothing was pruned: no removal that saves time stays within --tolerance 0.6 of the validation loss"
        in capfd.readouterr().err
    )
    assert not facts(tmp_path)["is_pruned"]
    assert_equal_weights(tmp_path / "pruned", made / "model")
    card, source = read_card(tmp_path / "pruned"), read_card(made / "model")
    assert (card.architecture, card.postprocessing, card.metrics) == (
        source.architecture, source.postprocessing, source.metrics,
    )  # fmt: skip


def test_a_removal_that_the_training_does_not_repair_is_not_delivered(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from medweave_steps.prune.loop import Pruning

    after_first: list[int] = []

    def loss(self: Pruning, network: Any) -> float:
        # Two removals stay within --removal-tolerance; only the first one is within --tolerance.
        size, whole = (sum(weight.numel() for weight in one.parameters()) for one in (network, self.trained))
        if size == whole:
            return 1.0
        if len(self.state.rounds) == 1 and not after_first:
            after_first.append(size)
        return 1.5 if not after_first or size == after_first[0] else 2.0

    monkeypatch.setattr(Pruning, "validation_loss", loss)
    assert prune(made, tmp_path, "--removal-tolerance", "2") == 0
    assert facts(tmp_path)["is_pruned"]
    assert len(facts(tmp_path)["removals"]) == 1
    assert facts(tmp_path)["validation_loss"]["after"] == 1.5


def test_the_last_epochs_train_with_a_learning_rate_that_falls_to_0(serene: Path) -> None:
    curves = json.loads((serene / "pruned_log" / "curves.json").read_text())
    rates = [point["learning_rate"] for point in curves if "learning_rate" in point]
    assert rates[0] == pytest.approx(0.001)
    assert rates[-1] < 1e-6


def test_a_pruning_that_was_interrupted_resumes_to_the_same_weights(
    made: Path, lobster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from medweave_steps.prune.loop import Pruning

    save, saved = Pruning.save, tmp_path / "saved"

    def save_three(self: Pruning, folder: Path, history: Any) -> None:
        save(self, folder, history)
        if self.state.epoch == 3:
            raise OSError(28, "No space left on device")

    words = ("--method", "lobster", "--checkpoint-folder", saved)
    with monkeypatch.context() as patch:
        patch.setattr(Pruning, "save", save_three)
        assert prune(made, tmp_path, *words) != 0
    assert prune(made, tmp_path, *words, "--resume-from", saved) == 0
    assert_equal_weights(tmp_path / "pruned", lobster / "pruned")
    assert facts(tmp_path)["removals"] == facts(lobster)["removals"]
    curves = [(folder / "pruned_log" / "curves.json").read_text() for folder in (tmp_path, lobster)]
    assert curves[0] == curves[1]


def test_a_checkpoint_with_removed_channels_is_resumed(made: Path, tmp_path: Path) -> None:
    assert prune(made, tmp_path, "--checkpoint-folder", tmp_path / "saved", name="first") == 0
    assert prune(made, tmp_path, "--resume-from", tmp_path / "saved", name="second") == 0
    assert_equal_weights(tmp_path / "second", tmp_path / "first")
    assert read_card(tmp_path / "second").architecture == read_card(tmp_path / "first").architecture


def test_a_checkpoint_of_another_method_is_refused(
    made: Path, lobster: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert prune(made, tmp_path, "--resume-from", lobster / "saved") == 65
    message = capfd.readouterr().err
    assert "the checkpoint belongs to another training" in message
    assert "method = 'lobster'" in message
    assert "method = 'serene'" in message


def test_checkpoints_of_train_and_prune_are_not_mixed_up(
    made: Path, lobster: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(name: str, *words: object) -> int:
        files = (
            "--training-set",
            made / "data",
            "--output",
            tmp_path / name,
            "--training-log",
            tmp_path / f"{name}_log",
        )
        report = ("--run-report", tmp_path / f"{name}.json", "--num-threads", "1")
        return main(["train", *TINY, *NETWORK, *map(str, (*files, *report, *words))])

    assert (
        train("trained", "--steps", "20", "--checkpoint-interval", "20", "--checkpoint-folder", tmp_path / "saved") == 0
    )
    codes = [
        prune(made, tmp_path, "--resume-from", tmp_path / "saved"),
        train("other", "--resume-from", lobster / "saved"),
    ]
    assert codes == [65, 65]
    assert capfd.readouterr().err.count("the checkpoint belongs to another training") == 2


def test_a_trained_model_whose_loss_is_not_a_number_is_refused(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from medweave_steps.prune.loop import Pruning

    monkeypatch.setattr(Pruning, "validation_loss", lambda *_: float("nan"))
    assert prune(made, tmp_path) == 65
    assert "the validation loss of the trained model is NaN or infinite" in capfd.readouterr().err


def test_dropout_is_drawn_from_the_seed(tmp_path: Path) -> None:
    image_set(tmp_path / "data", of_split={"train": 4, "validation": 4}, shapes=dict.fromkeys(range(8), (32, 32, 1)))
    words = ("--training-set", tmp_path / "data", "--output", tmp_path / "model", "--training-log", tmp_path / "log")
    words += ("--task", "classification", "--network", "vgg16", "--width", "0.05", "--steps", "1", "--batch-size", "4")
    assert main(["train", *map(str, (*words, "--run-report", tmp_path / "t.json", "--num-threads", "1"))]) == 0
    words = ("--method", "lobster", "--tolerance", "0", "--budget-epochs", "2")
    for name in ("one", "two"):
        assert prune(tmp_path, tmp_path, *words, name=name) == 0
    curves = [(tmp_path / f"{name}_log" / "curves.json").read_text() for name in ("one", "two")]
    assert curves[0] == curves[1]


def test_a_network_without_removable_channels_is_refused_with_its_layers(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (
        "train",
        "--training-set",
        made / "data",
        "--output",
        tmp_path / "model",
        "--training-log",
        tmp_path / "log",
    )
    options = (*TINY, *NETWORK, "--steps", "2", "--norm", "group", "--num-threads", "1")
    assert main([*map(str, words), *options, "--run-report", str(tmp_path / "t.json")]) == 0
    assert prune(made, tmp_path, model=tmp_path / "model") == 65
    message = capfd.readouterr().err
    assert "no channel of the model 'lung-nodule' can be removed" in message
    assert "model.0.conv (model.0.adn.N calls group_norm, through which channels are not followed)" in message
    assert not (tmp_path / "pruned").exists()
    assert prune(made, tmp_path, "--method", "lobster", model=tmp_path / "model", name="sparse") == 0


def test_a_quantized_model_is_refused(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    write_card(tmp_path / "model", dataclasses.replace(read_card(made / "model"), precision="int8"))
    assert prune(made, tmp_path, model=tmp_path / "model") == 65
    assert "cannot be pruned" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget-epochs", "1"), "at least 2: weights are removed after --plateau-epochs"),
        (("--tolerance", "-1"), "--tolerance"),
        (("--learning-rate", "0"), "more than 0"),
        (("--patch-shape", "7", "8", "8"), "multiples of 2"),
        (("--validation-cases", "1"), "prune validates on all cases"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    made: Path, tmp_path: Path, words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert prune(made, tmp_path, *words) == 2
    assert message in capfd.readouterr().err
