"""Networks declared as a stack of layers in a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import build_network, load_network
from medweave_steps.networks.layers import LayerError, checked_layer, read_layers, shapes_after
from support.training_set import TINY, training_set

torch = pytest.importorskip("torch")

CLASSIFIER = """\
layers:
  - {kind: conv, channels: 4, kernel: 3, stride: 2}
  - {kind: norm, type: group, groups: 2}
  - {kind: activation, function: relu}
  - {kind: pool, type: max, size: 2}
  - {kind: dropout, rate: 0.5}
  - kind: dense
    units: 6
  - {kind: activation, function: tanh}
  - {kind: dense, units: outputs}
"""
SEGMENTER = """\
layers:
  - {kind: conv, channels: 4}
  - {kind: norm}
  - {kind: activation, function: leaky-relu}
  - {kind: conv, channels: outputs, kernel: 1}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "layers.yml"
    path.write_text(text)
    return path


def built(layers: Any, shape: tuple[int, int, int], *, channels: int = 1, outputs: int = 3) -> Any:
    arguments = {"in_channels": channels, "outputs": outputs, "input_shape": list(shape), "layers": layers}
    return build_network({"class": "medweave_steps.networks.layer_stack.LayerStack", "arguments": arguments}).eval()


@pytest.mark.parametrize("shape", [(16, 12, 1), (16, 12, 8)])
def test_a_stack_that_ends_in_a_dense_layer_gives_one_logit_per_class(
    tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    network = built(read_layers(written(tmp_path, CLASSIFIER)), shape, channels=2)
    assert network(torch.zeros(5, 2, *shape)).shape == (5, 3)
    kinds = [type(layer).__name__.removesuffix("2d").removesuffix("3d") for layer in network.layers]
    assert kinds == ["Conv", "GroupNorm", "ReLU", "MaxPool", "Dropout", "Flatten", "Linear", "Tanh", "Linear"]


def test_a_stack_that_ends_in_a_convolution_gives_logits_on_the_grid_of_the_image(tmp_path: Path) -> None:
    layers = read_layers(written(tmp_path, SEGMENTER))
    assert built(layers, (8, 8, 1))(torch.zeros(1, 1, 12, 10, 1)).shape == (1, 3, 12, 10, 1)
    assert built(layers, (8, 8, 8))(torch.zeros(1, 1, 12, 10, 6)).shape == (1, 3, 12, 10, 6)


SIZES = st.integers(1, 4)
ENTRIES = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("conv"), "channels": SIZES, "kernel": st.sampled_from([1, 3, 5, [3, 1]]), "stride": st.integers(1, 3)}
    ),
    st.fixed_dictionaries({"kind": st.just("norm"), "type": st.sampled_from(["batch", "group", "instance"])}),
    st.fixed_dictionaries({"kind": st.just("activation"), "function": st.sampled_from(["relu", "gelu", "silu"])}),
    st.fixed_dictionaries(
        {"kind": st.just("pool"), "type": st.sampled_from(["max", "average"]), "size": st.sampled_from([1, 2, 3, "all", [1, 2]])}
    ),
    st.fixed_dictionaries({"kind": st.just("dropout"), "rate": st.floats(0, 0.9)}),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@example(entries=[{"kind": "pool", "type": "max", "size": "all"}, {"kind": "norm", "type": "instance"}], sides=(8, 8))
@given(entries=st.lists(ENTRIES, max_size=5), sides=st.tuples(st.integers(8, 30), st.integers(8, 30)))
def test_the_computed_shapes_are_those_of_torch(entries: list[dict[str, Any]], sides: tuple[int, int]) -> None:
    layers = [checked_layer(place, entry) for place, entry in enumerate([*entries, {"kind": "dense", "units": 2}])]
    try:
        shapes = shapes_after(layers, in_channels=2, outputs=2, sides=sides)
    except LayerError as error:
        assert "a pool of" in error.seen or "an instance norm of one value" in error.seen  # noqa: PT017  # the property is of either outcome
        return
    network, image = built(layers, (*sides, 1), channels=2, outputs=2), torch.zeros(2, 2, *sides, 1)
    seen, names = [], [f"layers.{place}" for place in range(len(network.layers))]
    for layer in network.layers:
        layer.register_forward_hook(lambda _, __, output: seen.append(tuple(output.shape[1:])))
    network(image)
    assert len(names) == len(seen)
    of_torch = [shape for shape, layer in zip(seen, network.layers, strict=True) if type(layer).__name__ != "Flatten"]
    assert of_torch == shapes


@pytest.mark.parametrize(
    ("entry", "seen", "expected"),
    [
        ("{kind: convolution, channels: 3}", "kind 'convolution'", "kind: one of conv, norm"),
        ("{channels: 3}", "kind None", "kind: one of"),
        ("dense", "an entry of type str", "kind: one of"),
        ("{kind: conv, chanels: 3}", "the key 'chanels' of conv", "kind, channels, kernel, stride, groups"),
        ("{kind: conv}", "conv without channels", "an integer of at least 1, or outputs"),
        ("{kind: conv, channels: 0}", "channels: 0", "an integer of at least 1"),
        ("{kind: conv, channels: true}", "channels: True", "an integer of at least 1"),
        ("{kind: conv, channels: 2, kernel: 4}", "kernel: 4", "an odd integer"),
        ("{kind: pool, type: mean, size: 2}", "type: 'mean'", "one of max, average"),
        ("{kind: dropout, rate: 1}", "rate: 1", "below 1"),
        ("{kind: dropout, rate: 0.1, rate: 0.2}", "the key 'rate' twice", "every key once"),
        ("{kind: dense, units: outputs}", "outputs before the last layer", "and no other one"),
        ("{kind: activation, function: softplus}", "function: 'softplus'", "one of relu"),
    ],
)
def test_a_wrong_entry_is_named_with_its_line(tmp_path: Path, entry: str, seen: str, expected: str) -> None:
    text = f"layers:\n  # a comment\n  - {{kind: norm}}\n  - {entry}\n  - {{kind: dense, units: outputs}}\n"
    with pytest.raises(UserInputError, match=r"layers\.yml, line 4, entry 2\.") as caught:
        read_layers(written(tmp_path, text))
    assert seen in caught.value.seen
    assert expected in caught.value.expected


def test_a_typo_gets_the_closest_match(tmp_path: Path) -> None:
    with pytest.raises(UserInputError) as caught:
        read_layers(written(tmp_path, "layers: [{kind: dens, units: outputs}]"))
    assert caught.value.do == "write 'dense' (closest match)"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "no keys"),
        ("- {kind: norm}", "no keys"),
        ("layers: []", "an empty list"),
        ("layers: [{kind: norm}]\nname: x", "the keys layers, name"),
        ("layers: [{kind: norm}]\nlayers: [{kind: norm}, {kind: dens}]", "the keys layers, layers"),
        ("<<: {layers: [{kind: dens}]}", "the keys <<"),
        ("layers: [", "while parsing"),
        ("layers:\n  - !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, seen: str) -> None:
    with pytest.raises(UserInputError, match="the file of --network-file cannot be read") as caught:
        read_layers(written(tmp_path, text))
    assert seen in caught.value.seen


def train(folder: Path, *words: object) -> int:
    files = ("--training-set", folder / "data", "--output", folder / "model", "--training-log", folder / "log")
    report = ("--run-report", folder / "report.json", "--num-threads", "1")
    return main(["train", *map(str, files), *TINY, *map(str, report), *map(str, words)])


def test_a_stack_trains_and_the_card_rebuilds_it_without_the_file(tmp_path: Path) -> None:
    training_set(tmp_path / "data")
    path = written(tmp_path, SEGMENTER)
    assert train(tmp_path, "--network-file", path) == 0
    path.unlink()
    card = read_card(tmp_path / "model")
    assert card.training["network"] == "layer-stack"
    assert len(card.training["network_file_sha256"]) == 64
    assert load_network(tmp_path / "model", card)(torch.zeros(1, 1, 8, 8, 8)).shape == (1, 1, 8, 8, 8)


def test_a_training_is_not_resumed_with_another_stack(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data")
    path = written(tmp_path, SEGMENTER)
    saving = ("--network-file", path, "--checkpoint-folder", tmp_path / "saved", "--checkpoint-interval", "2")
    assert train(tmp_path, *saving) == 0
    path.write_text(SEGMENTER.replace("leaky-relu", "relu"))
    resumed = ("--network-file", path, "--resume-from", tmp_path / "saved", "--output", tmp_path / "other")
    resumed += ("--training-log", tmp_path / "other_log")
    assert train(tmp_path, *resumed) == 65
    assert "network_file_sha256" in capfd.readouterr().err


def test_a_stack_that_the_data_are_too_small_for_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data")
    text = SEGMENTER.replace("  - {kind: norm}\n", "  - {kind: pool, type: max, size: 16}\n")
    assert train(tmp_path, "--network-file", written(tmp_path, text)) == 65
    shown = capfd.readouterr().err
    assert "layers.yml, line 3, entry 2." in shown
    assert "a pool of 16 x 16 x 16 on 8 x 8 x 8" in shown


def test_an_instance_norm_of_one_voxel_is_refused_with_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training_set(tmp_path / "data")
    norm = "  - {kind: pool, type: average, size: all}\n  - {kind: norm, type: instance}\n"
    text = SEGMENTER.replace("  - {kind: norm}\n", norm)
    assert train(tmp_path, "--network-file", written(tmp_path, text)) == 65
    shown = capfd.readouterr().err
    assert "layers.yml, line 4, entry 3." in shown
    assert "an instance norm of one value in each channel" in shown


def test_a_stack_of_another_output_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training_set(tmp_path / "data")
    assert train(tmp_path, "--network-file", written(tmp_path, CLASSIFIER)) == 65
    shown = capfd.readouterr().err
    assert "the network 'layer-stack' does not fit the task 'segmentation'" in shown
    assert "an output of shape (1, 1)" in shown
    assert not (tmp_path / "model").exists()


def test_files_of_layers_and_other_networks_exclude_each_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training_set(tmp_path / "data")
    assert train(tmp_path, "--network-file", written(tmp_path, SEGMENTER), "--network", "unet") == 2
    assert "it applies only to --network layer-stack" in capfd.readouterr().err
    assert train(tmp_path, "--network", "layer-stack") == 2
    assert "a YAML file of layers" in capfd.readouterr().err
