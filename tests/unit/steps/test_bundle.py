"""`medweave-step bundle`: a Bundle written here with MONAI, imported, exported and run; and refused Bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts.labels import Label
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from support.exported import export, openvino_logits
from support.model_folders import trained_model
from support.monai_bundle import PREPROCESSING, UNET, monai_network, write_bundle
from support.processes import interrupted, names_below, nearly_full_disk, started, wait_for_line


def take(folder: Path, *options: str, output: str = "trained") -> int:
    """Runs the verb in this process."""
    words = ["bundle", "--bundle", str(folder / "bundle"), "--output", str(folder / output)]
    return main([*words, "--run-report", str(folder / "report.json"), "--num-threads", "1", *options])


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bundle/ (two channels, softmax), trained/ and exported/."""
    folder = tmp_path_factory.mktemp("bundle")
    write_bundle(folder / "bundle")
    assert take(folder) == 0
    assert export(folder) == 0
    return folder


@pytest.mark.slow
def test_openvino_gives_the_probability_that_monai_gives(taken: Path) -> None:
    import torch

    image = np.random.default_rng(5).random((1, 1, 16, 16, 8), dtype=np.float32)
    network = monai_network(taken / "bundle")
    network.load_state_dict(torch.load(taken / "bundle/models/model.pt", weights_only=True)["model"])
    with torch.inference_mode():
        expected = torch.softmax(network.eval()(torch.from_numpy(image)), dim=1)[:, 1:].numpy()
    seen = openvino_logits(taken / "exported/models/float32.xml", image)
    np.testing.assert_allclose(1 / (1 + np.exp(-seen)), expected, atol=1e-6)
    assert expected.std() > 1e-3


@pytest.mark.slow
def test_the_card_says_what_the_bundle_says(taken: Path) -> None:
    card = read_card(taken / "trained")
    assert card.name == "Third-party nodules"
    assert card.input.spacing_mm == (1.5, 1.5, 2.0)
    assert card.input.window_hu == (-1000.0, 500.0)
    assert card.input.patch_shape == (16, 16, 8)
    assert card.input.patch_multiple == 4
    assert card.input.crop == "none"
    assert card.postprocessing.overlap == 0.5
    assert card.postprocessing.threshold == 0.4
    assert card.labels == (Label(value=1, name="nodule"),)
    assert card.architecture["output"] == "softmax"
    assert "difference" in card.notes["output"]
    assert card.metrics == {}


def test_options_go_before_the_bundle(taken: Path) -> None:
    options = ("--spacing-mm", "2", "2", "2", "--window-hu", "-900", "300", "--patch-shape", "8", "8", "8")
    assert take(taken, *options, "--crop", "lungs", "--threshold", "0.6", "--min-volume-mm3", "30", output="other") == 0
    card = read_card(taken / "other")
    assert (card.input.spacing_mm, card.input.window_hu) == ((2.0, 2.0, 2.0), (-900.0, 300.0))
    assert (card.input.patch_shape, card.input.crop) == ((8, 8, 8), "lungs")
    assert (card.postprocessing.threshold, card.postprocessing.min_volume_mm3) == (0.6, 30.0)


def test_a_bundle_in_yaml_with_one_channel_is_taken(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", classes=1, yaml=True)
    assert take(tmp_path) == 0
    card = read_card(tmp_path / "trained")
    assert card.architecture["output"] == "sigmoid"
    assert card.architecture["arguments"]["out_channels"] == 1
    assert "output" not in card.notes


def test_our_own_model_folder_comes_back_through_its_bundle_files(tmp_path: Path) -> None:
    from medweave_steps.io.model.bundle_files import write_bundle_configs

    card = trained_model(tmp_path / "bundle")
    write_bundle_configs(tmp_path / "bundle", card)
    assert take(tmp_path) == 0
    again = read_card(tmp_path / "trained")
    assert again.input.patch_multiple == 2
    assert (again.input.spacing_mm, again.input.window_hu) == (card.input.spacing_mm, card.input.window_hu)
    assert again.postprocessing == card.postprocessing
    assert again.labels == card.labels
    assert again.files["models/model.safetensors"] == card.files["models/model.safetensors"]


def test_a_bundle_that_says_too_little_names_the_options(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_bundle(tmp_path / "bundle", preprocessing=[], inferer={"_target_": "SimpleInferer"})
    assert take(tmp_path) == 65
    assert "--spacing-mm, --window-hu, --patch-shape" in capfd.readouterr().err
    assert (
        take(tmp_path, "--spacing-mm", "1", "1", "1", "--window-hu", "-1000", "400", "--patch-shape", "8", "8", "8")
        == 0
    )


def test_a_value_that_needs_code_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "ran"
    code = f"$open({str(mark)!r}, 'w').close() or [1, 1, 1]"
    write_bundle(tmp_path / "bundle", spacing=code)
    assert take(tmp_path) == 65
    assert "--spacing-mm" in capfd.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize(
    ("network_def", "message"),
    [
        ({"_target_": "scripts.my_network.Net"}, "_target_ 'scripts.my_network.Net'"),
        ({"_target_": "monai.bundle.run"}, "_target_ 'monai.bundle.run'"),
        (dict(UNET) | {"strides": "$[2, 2]"}, "which requires code execution"),
        (dict(UNET) | {"out_channels": "@nothing"}, "missing in the configuration"),
        (dict(UNET) | {"act": {"_target_": "torch.nn.ReLU"}}, "an argument that is a configured object"),
        (dict(UNET) | {"_requires_": "@classes"}, "_requires_"),
        ("@elsewhere", "network_def: @elsewhere"),
    ],
)
def test_a_network_that_needs_code_of_the_bundle_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], network_def: Any, message: str
) -> None:
    write_bundle(tmp_path / "bundle")
    path = tmp_path / "bundle/configs/inference.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"network_def": network_def}))
    assert take(tmp_path) == 65
    assert message in capfd.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out_channels": 3}, "3 output channels"),
        ({"in_channels": 2}, "for an input of shape"),
        ({"spatial_dims": 2}, "for an input of shape"),
    ],
)
def test_a_network_of_another_kind_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    write_bundle(tmp_path / "bundle", network_def=dict(UNET) | change)
    assert take(tmp_path) == 65
    error = capfd.readouterr().err
    assert "is not supported by segment" in error
    assert message in error


def test_two_channels_with_a_sigmoid_are_two_labels_and_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    post = [{"_target_": "Activationsd", "keys": "pred", "sigmoid": True}]
    write_bundle(tmp_path / "bundle", postprocessing=post)
    assert take(tmp_path) == 65
    assert "2 output channels, and the activation sigmoid" in capfd.readouterr().err


@pytest.mark.parametrize(
    "transform",
    [
        {"_target_": "NormalizeIntensityd", "keys": "image"},
        {"_target_": "ResizeD", "keys": "image", "spatial_size": [64, 64, 64]},
        {"_target_": "Orientationd", "keys": "image", "axcodes": "LPS"},
    ],
)
def test_preprocessing_that_a_card_cannot_say_is_refused_unless_the_user_answers_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], transform: dict[str, Any]
) -> None:
    write_bundle(tmp_path / "bundle", preprocessing=[*PREPROCESSING, transform])
    assert take(tmp_path) == 65
    assert "a model card cannot describe" in capfd.readouterr().err
    assert take(tmp_path, "--spacing-mm", "1", "1", "1", "--window-hu", "-1000", "400") == 0
    assert "is not supported and not applied" in capfd.readouterr().err


def test_weights_of_another_network_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_bundle(tmp_path / "bundle")
    path = tmp_path / "bundle/configs/inference.json"
    document = json.loads(path.read_text())
    document["network_def"]["channels"] = [4, 8, 16]
    path.write_text(json.dumps(document))
    assert take(tmp_path) == 65
    assert "do not match its architecture" in capfd.readouterr().err


@pytest.mark.parametrize("content", [None, b"version https://git-lfs.github.com/spec/v1", "truncated"])
def test_weights_that_cannot_be_read_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes | str | None
) -> None:
    write_bundle(tmp_path / "bundle")
    path = tmp_path / "bundle/models/model.pt"
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(whole[:-200] if isinstance(content, str) else content)
    assert take(tmp_path) == 65
    error = capfd.readouterr().err
    assert "the weights of the Bundle cannot be read" in error
    assert str(tmp_path) not in error


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(tmp_path / "ran"), "w"))

    write_bundle(tmp_path / "bundle")
    (tmp_path / "bundle/models/model.pt").write_bytes(pickle.dumps(Evil()))
    assert take(tmp_path) == 65
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", [None, "{ not json", "[1, 2]"])
def test_a_folder_that_is_no_bundle_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str | None
) -> None:
    (tmp_path / "bundle/configs").mkdir(parents=True)
    if text is not None:
        (tmp_path / "bundle/configs/inference.json").write_text(text)
    assert take(tmp_path) == 65
    error = capfd.readouterr().err
    assert "not an importable MONAI Bundle" in error or "cannot be parsed" in error
    assert str(tmp_path) not in error


def test_a_patch_that_the_network_does_not_take_is_refused(taken: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert take(taken, "--patch-shape", "10", "8", "8", output="none") == 65
    assert "multiples of 4" in capfd.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--spacing-mm", "0", "1", "1"),
        ("--window-hu", "400", "-1000"),
        ("--threshold", "1"),
        ("--patch-shape", "0", "8", "8"),
    ],
)
def test_options_that_cannot_be_used_are_refused(taken: Path, options: tuple[str, ...]) -> None:
    assert take(taken, *options, output="none") == 2


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(taken: Path, tmp_path: Path) -> None:
    words = ["bundle", "--bundle", str(taken / "bundle"), "--output", str(tmp_path / "trained")]
    # Import takes no time that could be hit, so the process waits where the weights have been written.
    waiting = """
import time, sys
import medweave_steps.io.model.bundle_files as files
def wait(folder, card):
    print("weights written", file=sys.stderr, flush=True)
    time.sleep(600)
files.write_bundle_configs = wait
"""
    process = started(words, folder=tmp_path, before=waiting)
    wait_for_line(process, "weights written")
    assert any("model.safetensors" in name for name in names_below(tmp_path))
    assert interrupted(process)[0] == 130
    assert names_below(tmp_path) == []


def test_a_full_disk_is_reported_and_leaves_nothing(taken: Path, tmp_path: Path) -> None:
    with nearly_full_disk(tmp_path, 1000) as output:
        code = main(["bundle", "--bundle", str(taken / "bundle"), "--output", "trained", "--num-threads", "1"])
    assert (code, names_below(tmp_path)) == (74, []), output.getvalue()
