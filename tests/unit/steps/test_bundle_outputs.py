"""Bundles of several classes and channels: labels, regions and classes are those that the Bundle or the user names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.model import OutputContract
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from support.exported import export, openvino_logits
from support.monai_bundle import PREPROCESSING, UNET, monai_network, write_bundle

torch = pytest.importorskip("torch")

DENSENET = {
    "_target_": "DenseNet", "spatial_dims": 2, "in_channels": 3, "out_channels": 3, "init_features": 4, "growth_rate": 2,
    "block_config": [1, 1], "bn_size": 1,
}  # fmt: skip
IMAGES = [
    {"_target_": "LoadImaged", "keys": "image"},
    {"_target_": "ScaleIntensityRanged", "keys": "image", "a_min": 0, "a_max": 255, "b_min": 0, "b_max": 1},
]
MR = [*PREPROCESSING[:-1], {"_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True}]
SPACING = ("--spacing-mm", "1", "1", "1")


def post(**activation: bool) -> dict[str, Any]:
    return {"_target_": "Compose", "transforms": [{"_target_": "Activationsd", "keys": "pred", **activation}]}


def name_channels(folder: Path, side: str, *names: str, **more: Any) -> None:
    """Write the names of the channels into metadata.json."""
    path = folder / "bundle/configs/metadata.json"
    document = json.loads(path.read_text())
    part = {"channel_def": {str(place): name for place, name in enumerate(names)}, **more}
    document["network_data_format"][side] = {"image" if side == "inputs" else "pred": part}
    path.write_text(json.dumps(document))


def take(folder: Path, *options: str) -> int:
    """Runs the verb in this process."""
    words = ["bundle", "--bundle", str(folder / "bundle"), "--output", str(folder / "trained"), "--num-threads", "1"]
    return main([*words, "--run-report", str(folder / "report.json"), *options])


def logits_of(folder: Path, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of MONAI's network, and of the exported model for [1, C, I, J, K]."""
    network = monai_network(folder / "bundle")
    network.load_state_dict(torch.load(folder / "bundle/models/model.pt", weights_only=True)["model"])
    if image.shape[-1] == 1:
        flat = torch.from_numpy(image[..., 0])
    with torch.inference_mode():
        expected = network.eval()(flat if image.shape[-1] == 1 else torch.from_numpy(image)).numpy()
    return expected, openvino_logits(folder / "exported/models/float32.xml", image)


@pytest.mark.slow
def test_several_labels_in_several_mr_channels_are_imported_and_exported(tmp_path: Path) -> None:
    network = dict(UNET) | {"in_channels": 2, "out_channels": 3}
    write_bundle(tmp_path / "bundle", network_def=network, preprocessing=MR, postprocessing=post(softmax=True))
    name_channels(tmp_path, "inputs", "FLAIR", "T1w", num_channels=2, modality="MR")
    name_channels(tmp_path, "outputs", "background", "edema", "core")
    assert take(tmp_path) == 0
    card = read_card(tmp_path / "trained")
    assert card.labels == (Label(value=1, name="edema"), Label(value=2, name="core"))
    assert card.output == OutputContract(activation="softmax")
    assert (card.input.modality, card.input.unit, card.input.window_hu) == ("MR", "SD", None)
    assert (card.input.channels, card.input.channel_names) == (2, ("FLAIR", "T1w"))
    assert export(tmp_path) == 0
    image = np.random.default_rng(0).normal(size=(1, 2, 16, 16, 8)).astype(np.float32)
    expected, seen = logits_of(tmp_path, image)
    np.testing.assert_allclose(seen, expected, atol=1e-5)


def test_labels_of_the_user_take_precedence_over_the_names_of_the_bundle(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", network_def=dict(UNET) | {"out_channels": 3}, postprocessing=post(softmax=True))
    name_channels(tmp_path, "outputs", "background", "a", "b")
    (tmp_path / "labels.json").write_text(json.dumps([{"value": 2, "name": "liver"}, {"value": 5, "name": "tumor"}]))
    assert take(tmp_path, "--labels", str(tmp_path / "labels.json")) == 0
    assert [(label.value, label.name) for label in read_card(tmp_path / "trained").labels] == [
        (2, "liver"),
        (5, "tumor"),
    ]


def test_several_sigmoid_channels_are_the_regions_of_the_user(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_bundle(tmp_path / "bundle", network_def=dict(UNET) | {"out_channels": 2}, postprocessing=post(sigmoid=True))
    name_channels(tmp_path, "outputs", "Tumor core", "Whole tumor")
    assert take(tmp_path) == 65
    shown = capfd.readouterr().err
    assert "2 output channels, and the activation sigmoid (Tumor core, Whole tumor)" in shown
    assert "--regions in the order of the channels" in shown
    (tmp_path / "labels.json").write_text(json.dumps([{"value": 1, "name": "edema"}, {"value": 2, "name": "core"}]))
    declared = ("--labels", str(tmp_path / "labels.json"), "--regions", "core:2", "whole:1,2")
    assert take(tmp_path, *declared) == 0
    card = read_card(tmp_path / "trained")
    assert card.output.regions == (Region(name="core", values=(2,)), Region(name="whole", values=(1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "expected"), [("softmax", "softmax"), ("sigmoid", "sigmoid")])
def test_a_classification_of_color_images_is_imported_and_exported(
    tmp_path: Path, activation: str, expected: str
) -> None:
    write_bundle(
        tmp_path / "bundle", network_def=DENSENET, preprocessing=IMAGES, postprocessing=post(**{activation: True}),
        inferer={"_target_": "SimpleInferer"},
    )  # fmt: skip
    name_channels(tmp_path, "inputs", "Red", "Green", "Blue", num_channels=3, spatial_shape=[16, 12])
    name_channels(tmp_path, "outputs", "MEL", "NV", "BCC")
    assert take(tmp_path, *SPACING) == 0
    card = read_card(tmp_path / "trained")
    assert (card.task_name, card.labels) == ("classification", ())
    assert [one.name for one in card.classes] == ["MEL", "NV", "BCC"]
    assert card.output == OutputContract(activation=expected)  # type: ignore[arg-type]
    assert (card.input.channel_names, card.input.unit) == (("red", "green", "blue"), "1")
    assert card.input.patch_shape == (16, 12, 1)
    assert card.architecture["input"] == "2-D"
    assert export(tmp_path) == 0
    image = np.random.default_rng(0).random((1, 3, 16, 12, 1), dtype=np.float32)
    monai, seen = logits_of(tmp_path, image)
    assert seen.shape == (1, 3)
    np.testing.assert_allclose(seen, monai, atol=1e-5)


def classifier(folder: Path, *names: str, **activation: bool) -> None:
    write_bundle(folder / "bundle", network_def=DENSENET, preprocessing=IMAGES, postprocessing=post(**activation))
    name_channels(folder, "inputs", "red", "green", "blue", num_channels=3, spatial_shape=[16, 12])
    name_channels(folder, "outputs", *names)


FLAT = (*SPACING, "--patch-shape", "16", "12", "1")


@pytest.mark.parametrize(
    ("names", "activation", "seen"),
    [
        ((), {"softmax": True}, "activation softmax, no names"),
        (("MEL", "NV"), {"softmax": True}, "2 names (MEL, NV)"),
        (("MEL", "NV", "BCC"), {}, "activation unknown, 3 names"),
    ],
)
def test_classes_are_not_guessed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], names: tuple[str, ...], activation: dict[str, bool], seen: str
) -> None:
    classifier(tmp_path, *names, **activation)
    assert take(tmp_path, *FLAT) == 65
    shown = capfd.readouterr().err
    assert "the Bundle does not define the classes of its network" in shown
    assert seen in shown


def test_two_classes_with_one_name_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    classifier(tmp_path, "MEL", "MEL", "NV", softmax=True)
    assert take(tmp_path, *FLAT) == 65
    assert "the classes need different names" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--labels", "--regions"])
def test_a_classification_has_no_labels(tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str) -> None:
    classifier(tmp_path, "MEL", "NV", "BCC", softmax=True)
    assert take(tmp_path, *FLAT, option, "lung-nodule") == 2
    assert f"invalid value of {option}" in capfd.readouterr().err


def test_channels_of_a_softmax_without_background_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_bundle(tmp_path / "bundle", network_def=dict(UNET) | {"out_channels": 3}, postprocessing=post(softmax=True))
    name_channels(tmp_path, "outputs", "liver", "spleen", "kidney")
    assert take(tmp_path) == 65
    shown = capfd.readouterr().err
    assert "3 output channels, and the activation softmax, named liver, spleen, kidney" in shown
    assert "the first one 'background'" in shown


def test_several_input_channels_need_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_bundle(tmp_path / "bundle", network_def=dict(UNET) | {"in_channels": 2}, preprocessing=MR)
    name_channels(tmp_path, "inputs", num_channels=2)
    assert take(tmp_path) == 65
    assert "set --channel-names" in capfd.readouterr().err
    assert take(tmp_path, "--channel-names", "T1w", "T2w") == 0
    assert read_card(tmp_path / "trained").input.channel_names == ("T1w", "T2w")


@pytest.mark.parametrize("change", [{"nonzero": True}, {"channel_wise": False}, {"subtrahend": [0.5]}])
def test_another_normalization_of_mr_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    other = [*MR[:-1], MR[-1] | change]
    write_bundle(tmp_path / "bundle", network_def=dict(UNET) | {"in_channels": 2}, preprocessing=other)
    assert take(tmp_path, "--channel-names", "T1w", "T2w") == 65
    shown = capfd.readouterr().err
    assert "NormalizeIntensityd in the preprocessing" in shown
    assert "NormalizeIntensityd, channel-wise" in shown


@pytest.mark.parametrize(
    ("network", "channels", "scaling"),
    [
        (dict(UNET) | {"in_channels": 2}, ("T1w", "T2w"), "NormalizeIntensityd, channel-wise"),
        (DENSENET, ("red", "green", "blue"), "ScaleIntensityRanged from 0..255 to 0..1"),
    ],
)
def test_a_bundle_without_scaling_is_refused_unless_the_user_answers_for_it(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    network: dict[str, Any],
    channels: tuple[str, ...],
    scaling: str,
) -> None:
    write_bundle(tmp_path / "bundle", network_def=network, preprocessing=MR[:-1])
    words = ("--channel-names", *channels)
    assert take(tmp_path, *words) == 65
    assert scaling in capfd.readouterr().err
    take(tmp_path, *words, *SPACING)
    assert f"the Bundle does not scale its input; preprocess does it like {scaling}." in capfd.readouterr().err
