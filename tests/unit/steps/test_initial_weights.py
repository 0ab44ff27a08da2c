"""`train --initial-weights` and `--freeze`: what is loaded, what is reported, and what is refused."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import WEIGHTS_FILE, card_sha256, read_card
from medweave_steps.io.model.initial_weights import find_weights, freeze, load_matching, read_weights
from support.monai_bundle import write_bundle
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights
from support.weights import weights as arrays

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


def train(folder: Path, data: Path, *words: object, output: str = "model") -> int:
    files = ("--training-set", data, "--output", folder / output, "--training-log", folder / f"{output}_log")
    report = ("--run-report", folder / f"{output}.json", "--num-threads", "1")
    return main(["train", *map(str, files), *TINY, *map(str, report), *map(str, words)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A folder with model/."""
    folder = tmp_path_factory.mktemp("trained")
    assert train(folder, data) == 0
    return folder


def weights(folder: Path) -> dict[str, Any]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays(folder).items()}


def of_card(folder: Path, output: str = "model") -> Mapping[str, Any]:
    facts: Mapping[str, Any] = read_card(folder / output).training["initial_weights"]
    return facts


def test_weights_of_a_model_folder_are_loaded_and_name_the_parent(
    trained: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, data, "--initial-weights", trained / "model", "--seed", 5) == 0
    total = len(weights(trained / "model"))
    shown = capfd.readouterr().err
    assert f"initial weights (model folder): {total} of the network's {total} weights and statistics loaded." in shown
    card = read_card(tmp_path / "model")
    assert card.parent_sha256 == card_sha256(read_card(trained / "model"))
    assert of_card(tmp_path) == {
        "source": "model folder", "num_loaded": total, "shapes_differ": {}, "not_in_source": [], "not_in_network": [],
        "frozen": [],
    }  # fmt: skip
    assert len(card.training["initial_weights_sha256"]) == 64


def test_weights_that_the_card_does_not_list_are_refused(
    trained: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "model", tmp_path / "edited")
    card = json.loads((tmp_path / "edited" / "model_card.json").read_text())
    del card["files"][WEIGHTS_FILE]
    (tmp_path / "edited" / "model_card.json").write_text(json.dumps(card))
    assert train(tmp_path, data, "--initial-weights", tmp_path / "edited") == 65
    assert f"{WEIGHTS_FILE}, listed in its model card" in capfd.readouterr().err


@pytest.mark.parametrize("optimizer", [("adam",), ("adamw", "--weight-decay", "0.1"), ("sgd", "--weight-decay", "0.1")])
def test_frozen_parameters_keep_their_bits_under_every_optimizer(
    trained: Path, data: Path, tmp_path: Path, optimizer: tuple[str, ...]
) -> None:
    frozen = ("--initial-weights", trained / "model", "--freeze", "model.0.*")
    assert train(tmp_path, data, *frozen, "--optimizer", *optimizer) == 0
    before, after = weights(trained / "model"), weights(tmp_path / "model")
    own = of_card(tmp_path)["frozen"]
    assert own
    assert all(name.startswith("model.0.") for name in own)
    assert all(torch.equal(before[name], after[name]) for name in own)
    assert any(not torch.equal(before[name], after[name]) for name in before if name not in own)


@pytest.mark.slow
def test_two_ranks_train_a_frozen_network_like_one(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ("--initial-weights", trained / "model", "--freeze", "model.0.*", "--norm", "instance")
    words = (*words, "--threads-per-rank", 1, "--dice", "sample", "--optimizer", "sgd")
    assert train(tmp_path, data, *words, output="one") == 0
    assert train(tmp_path, data, *words, "--strategy", "ddp", "--ranks", 2, output="two") == 0
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-5)


def test_a_resumed_training_ends_in_the_same_bits(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ("--initial-weights", trained / "model", "--freeze", "model.0.*")
    saving = ("--checkpoint-folder", tmp_path / "saved", "--checkpoint-interval", 4)
    assert train(tmp_path, data, *words, *saving) == 0
    assert train(tmp_path, data, *words, "--resume-from", tmp_path / "saved", output="resumed") == 0
    assert_equal_weights(tmp_path / "model", tmp_path / "resumed")


def test_a_training_is_not_resumed_with_other_frozen_parameters(
    trained: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("--initial-weights", trained / "model")
    saving = ("--checkpoint-folder", tmp_path / "saved", "--checkpoint-interval", 4, "--freeze", "model.0.*")
    assert train(tmp_path, data, *words, *saving) == 0
    assert train(tmp_path, data, *words, "--resume-from", tmp_path / "saved", output="resumed") == 65
    assert "freeze = ['model.0.*']" in capfd.readouterr().err


def test_what_does_not_match_is_reported_and_drawn_from_the_seed(
    trained: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed = dict(weights(trained / "model"))
    names = [name for name in changed if "conv" in name]
    first, last = names[0], names[-1]
    changed[first] = torch.zeros(3)
    changed["of_another_network"] = changed.pop(last)
    torch.save({"state_dict": changed}, tmp_path / "weights.pt")
    assert train(tmp_path, data, "--initial-weights", tmp_path / "weights.pt") == 0
    shown = capfd.readouterr().err
    assert "initial weights (state dict):" in shown
    assert f"1 left out because the shapes differ: {first} [3] instead of" in shown
    assert f"1 not in the initial weights: {last}" in shown
    assert "1 of the initial weights not in the network: of_another_network" in shown
    facts = of_card(tmp_path)
    assert (facts["not_in_source"], facts["not_in_network"]) == ([last], ["of_another_network"])
    assert facts["shapes_differ"][first][0] == [3]
    assert read_card(tmp_path / "model").parent_sha256 is None


def test_weights_of_a_bundle_match_the_network_of_its_options(data: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", classes=1)
    options = ("--channels", 4, 8, 8, "--strides", 2, 2, "--residual-units", 1)
    assert train(tmp_path, data, "--initial-weights", tmp_path / "bundle", *options) == 0
    facts = of_card(tmp_path)
    assert (facts["source"], facts["not_in_source"]) == ("MONAI Bundle", [])
    assert facts["num_loaded"] > 10


def test_weights_of_data_parallel_and_safetensors_are_read(trained: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    own = weights(trained / "model")
    save_file({f"module.{name}": tensor.contiguous() for name, tensor in own.items()}, tmp_path / "own.safetensors")
    read = read_weights(find_weights(tmp_path / "own.safetensors"))
    assert read.keys() == own.keys()


def test_weights_that_do_not_match_at_all_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.save({"encoder.weight": torch.zeros(2)}, tmp_path / "weights.pt")
    assert train(tmp_path, data, "--initial-weights", tmp_path / "weights.pt") == 65
    shown = capfd.readouterr().err
    assert "the initial weights do not match the network" in shown
    assert "encoder.weight" in shown
    assert not (tmp_path / "model").exists()


class Touch:
    """An object that makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_weights_are_loaded_without_running_code(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "ran"
    torch.save({"weight": torch.zeros(1), "code": Touch(mark)}, tmp_path / "zip.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Touch(mark)))
    for name in ("zip.pt", "plain.pt"):
        assert train(tmp_path, data, "--initial-weights", tmp_path / name) == 65
        assert f"the initial weights cannot be read.\n  seen:     {name}: " in capfd.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1", "tensor"])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes | str) -> None:
    if content == "tensor":
        buffer = io.BytesIO()
        torch.save(torch.zeros(3), buffer)
        content = buffer.getvalue()
    assert isinstance(content, bytes)
    for name in ("weights.pt", "weights.safetensors"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserInputError, match="the initial weights cannot be read"):
            read_weights(find_weights(tmp_path / name))


@pytest.mark.parametrize("name", ["missing.pt", "empty"])
def test_a_place_without_weights_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserInputError, match="the initial weights cannot be read"):
        find_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--freeze", "no.such.*"), 65, "--freeze no.such.*, which matches no parameter"),
        (("--freeze", "*"), 65, "parameters frozen"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(
    trained: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: Any, code: int, message: str
) -> None:
    assert train(tmp_path, data, "--initial-weights", trained / "model", *words) == code
    assert message in capfd.readouterr().err


def test_freezing_random_weights_is_refused(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, data, "--freeze", "model.0.*") == 2
    assert "it applies only with --initial-weights" in capfd.readouterr().err


NAMES = st.sampled_from(["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"])


@settings(max_examples=50, deadline=None)
@given(shapes=st.dictionaries(NAMES, st.sampled_from([(2, 3), (2,), (4, 2), (4,), (1,)])))
def test_every_weight_is_in_one_part_of_the_report(shapes: dict[str, tuple[int, ...]]) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 4))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    given_weights = {name: torch.full(shape, 7.0) for name, shape in shapes.items()}
    fits = {name for name in before if name in shapes and shapes[name] == tuple(before[name].shape)}
    if not fits:
        with pytest.raises(UserInputError):
            load_matching(network, given_weights)
        return
    matched = load_matching(network, given_weights)
    assert set(matched.loaded) == fits
    assert fits | set(matched.mismatched) | set(matched.new) == set(before)
    assert set(matched.unused) == shapes.keys() - before.keys()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, given_weights[name] if name in fits else before[name])
    json.dumps(matched.facts)


def test_freezing_takes_several_patterns() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 4), torch.nn.Linear(4, 4))
    assert freeze(network, ["0.*", "*.bias"]) == ["0.weight", "0.bias", "1.bias", "2.bias"]
    assert [parameter.requires_grad for parameter in network.parameters()] == [False, False, True, False, True, False]
