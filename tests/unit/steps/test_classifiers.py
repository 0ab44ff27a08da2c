"""The networks for classification: their size, what they take and give, and which tasks and data they fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import StepError, UsageError, UserInputError
from medweave_steps.cli import main
from medweave_steps.export.graphs import reference_logits, write_onnx
from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import build_network
from medweave_steps.io.model.openvino_ir import write_openvino
from medweave_steps.io.model.parity import compare, judge, onnxruntime_runner, openvino_runner
from medweave_steps.networks import check_kind, names_for, network_type
from medweave_steps.networks.classification import ClassifierOptions, VggOptions
from medweave_steps.runtime.options import build_config
from medweave_steps.tasks import Task
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.network import architecture, plan_network, sized
from support.image_set import image_set

torch = pytest.importorskip("torch")

NAMES = ("mobilenet", "vgg16", "resnet18", "resnet50", "densenet121")


def described(name: str, shape: tuple[int, int, int], *, classes: int, channels: int = 3, **options: Any) -> Any:
    """Return the architecture of a network for inputs of a shape."""
    own = network_type(name).Options(**options)
    config: Any = SimpleNamespace(network=name, network_options=own, patch_shape=shape, task="segmentation")
    return architecture(config, channels=channels, out_channels=classes)


def on_meta(name: str, *, classes: int = 1000, **options: Any) -> Any:
    """Return a network for 2-D images of 224 pixels without memory for its weights."""
    with torch.device("meta"):
        return build_network(described(name, (224, 224, 1), classes=classes, **options))


def number(network: Any, *, ends: str = "") -> int:
    return sum(tensor.numel() for name, tensor in network.named_parameters() if name.endswith(ends))


def test_vgg16_has_the_published_number_of_parameters_and_bytes() -> None:
    network = on_meta("vgg16", classes=8)
    assert number(network) == 134_293_320
    assert (number(network, ends="weight"), number(network, ends="bias")) == (134_280_896, 12_424)
    assert sum(tensor.numel() * tensor.element_size() for tensor in network.parameters()) == 537_173_280
    assert number(on_meta("vgg16")) == 138_357_544


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # Howard et al. 2017 (4.2, 1.3 and 0.5 million) as the reference implementation in Keras counts trainable parameters.
        ("mobilenet", {"width": 1.0}, 4_231_976),
        ("mobilenet", {"width": 0.5}, 1_331_592),
        ("mobilenet", {"width": 0.25}, 470_072),
        # torchvision 0.20.
        ("resnet18", {}, 11_689_512),
        ("resnet50", {}, 25_557_032),
        ("densenet121", {}, 7_978_856),
    ],
)
def test_networks_have_the_published_number_of_parameters(name: str, options: Any, expected: int) -> None:
    assert number(on_meta(name, **options)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_network_gives_one_logit_per_class_for_images(name: str) -> None:
    network = build_network(described(name, (48, 32, 1), classes=5, width=0.0625)).eval()
    with torch.inference_mode():
        assert network(torch.zeros(2, 3, 48, 32, 1)).shape == (2, 5)
    assert number(network) < number(on_meta(name)) / 50


@pytest.mark.parametrize("name", ["mobilenet", "resnet18", "densenet121"])
def test_a_narrow_network_takes_volumes_of_several_channels(name: str) -> None:
    network = build_network(described(name, (32, 36, 40), classes=3, channels=2, width=0.0625)).eval()
    with torch.inference_mode():
        assert network(torch.zeros(1, 2, 32, 36, 40)).shape == (1, 3)


def test_an_image_of_several_slices_is_no_2_d_image() -> None:
    network = build_network(described("mobilenet", (32, 32, 1), classes=3, width=0.125)).eval()
    with pytest.raises(RuntimeError):
        network(torch.zeros(1, 3, 32, 32, 2))


@pytest.mark.parametrize("name", ["vgg16", "mobilenet", "densenet121"])
def test_exported_networks_give_the_logits_of_torch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = (32, 40, 1)
    network = build_network(described(name, shape, classes=4, width=0.0625)).eval()
    windows = list(np.random.default_rng(0).random((3, 1, 3, *shape), dtype=np.float32))
    expected = reference_logits(network, windows, output_shape=(1, 4))
    write_onnx(network, shape, tmp_path / "model.onnx", channels=3)
    write_openvino(tmp_path / "model.onnx", shape, tmp_path / "model.xml", channels=3)
    runners = {"OpenVINO": openvino_runner(tmp_path / "model.xml", 1)}
    if (of_onnx := onnxruntime_runner(tmp_path / "model.onnx", 1)) is not None:
        runners["ONNX Runtime"] = of_onnx
    for backend, runner in runners.items():
        pairs = [(logits, runner(window)) for logits, window in zip(expected, windows, strict=True)]
        result = compare(backend, pairs, decide=lambda logits: logits.argmax(1))
        judge(result, logit_tolerance=1e-4, decision_tolerance=0)


def test_an_export_of_one_logit_per_voxel_is_no_classification() -> None:
    network = build_network(described("mobilenet", (32, 32, 1), classes=4, width=0.0625)).eval()
    with pytest.raises(UserInputError, match=r"an output of shape \(1, 3\)"):
        reference_logits(network, [np.zeros((1, 3, 32, 32, 1), np.float32)], output_shape=(1, 3))


class Classes(Task):
    """A task that needs one logit per class."""

    name, output_kind = "classes", "classes"
    training_of_cohort = training_of_card = None  # type: ignore[assignment]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the task and return it as a model with four classes learns it."""
    from medweave_steps import tasks

    own = Classes()
    find = tasks.task_named
    for module in ("tasks", "train.config", "train.network"):
        monkeypatch.setattr(f"medweave_steps.{module}.task_named", lambda name: own if name == own.name else find(name))
    return SimpleNamespace(num_channels=4)


def config(**options: Any) -> TrainConfig:
    return build_config(TrainConfig, {"training_set": Path("a"), "output": Path("b"), "task": "classes"} | options)


def test_the_default_network_of_a_classification_is_mobilenet_with_its_options(task: Any) -> None:
    assert (config(width=0.25).network, config(width=0.25).network_options) == (
        "mobilenet", ClassifierOptions(width=0.25),
    )  # fmt: skip
    assert config(task="segmentation").network == "unet"
    assert config(network="vgg16", dropout=0.1).network_options == VggOptions(dropout=0.1)
    with pytest.raises(UsageError, match="--width"):
        config(width=2.0)
    with pytest.raises(UsageError, match="--dropout"):
        config(network="vgg16", dropout=1.0)


def test_a_network_that_does_not_fit_the_task_is_refused_with_those_that_do(task: Any) -> None:
    with pytest.raises(UsageError, match="the network 'unet' does not fit the task 'classes'") as caught:
        config(network="unet")
    assert "mobilenet, vgg16, resnet18, resnet50, densenet121" in caught.value.expected
    with pytest.raises(UsageError, match="does not fit the task 'segmentation'") as caught:
        config(network="vgg16", task="segmentation")
    assert "unet, distmis-as-described" in caught.value.expected
    assert "vgg16" not in caught.value.expected
    with pytest.raises(UsageError, match="--preset"):
        config(preset="auto")


def test_a_network_for_images_is_refused_for_volumes(task: Any) -> None:
    with pytest.raises(UsageError, match="the network 'vgg16' does not take volumes") as caught:
        sized(config(network="vgg16"), (32, 32, 32))
    names = "mobilenet, resnet18, resnet50, densenet121, resattnet18, resattnet34"
    assert caught.value.expected == f"a network for volumes: {names}"


def test_images_that_are_too_small_are_refused(task: Any) -> None:
    with pytest.raises(UserInputError, match="the images are too small for the network 'vgg16'") as caught:
        sized(config(network="vgg16"), (28, 28, 1))
    assert (caught.value.seen, caught.value.expected) == ("images of 28 x 28", "each side at least 32")


def test_the_data_fix_the_shape_of_the_input(task: Any) -> None:
    chosen = sized(config(width=0.125), (40, 32, 1))
    assert chosen.patch_shape == chosen.window_shape == (40, 32, 1)
    plan = plan_network(chosen, task, channels=3)
    assert plan.architecture == {
        "class": "medweave_steps.networks.classifiers.MobileNet",
        "arguments": {"spatial_dims": 2, "in_channels": 3, "num_classes": 4, "width": 0.125},
    }
    assert sized(chosen, None) is chosen


def test_names_are_listed_by_what_networks_give_and_take() -> None:
    assert names_for("classes", 2) == [*NAMES, "ecg-resnet", "mlp"]
    assert "resenc-unet" in names_for("voxels")
    with pytest.raises(StepError):
        check_kind("resnet18", "voxels", task="segmentation")


LAYERS = """\
layers:
  - {kind: conv, channels: 4, stride: 2}
  - {kind: activation, function: relu}
  - {kind: pool, type: average, size: all}
  - {kind: dense, units: outputs}
"""
CODE = """\
import torch

class Dense(torch.nn.Sequential):
    def __init__(self, *, in_channels, out_channels, input_shape):
        rows, columns, slices = input_shape
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(in_channels * rows * columns * slices, out_channels))
"""
WORDS = {
    "default": ("--width", "0.125"),
    "resnet18": ("--network", "resnet18", "--width", "0.0625"),
    "layer-stack": ("--network-file", "layers.yml"),
    "code": ("--network", "dense:Dense", "--network-code", "dense.py", "--allow-code"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_every_way_to_name_a_network_trains_exports_and_continues_a_classification(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    image_set(Path("data"))
    Path("layers.yml").write_text(LAYERS)
    Path("dense.py").write_text(CODE)
    consent = ("--allow-code",) if name == "code" else ()
    recipe = ("--batch-size", "4", "--precision", "float32", "--num-threads", "1")
    words = ("--task", "classification", "--steps", "4", "--epoch-steps", "2", "--validation-interval", "1", *recipe)
    assert main(["train", "--training-set", "data", "--output", "model", *words, *WORDS[name]]) == 0
    card = read_card(Path("model"))
    assert card.input.patch_shape == (16, 12, 1)
    exported = ("--trained-model", "model", "--output", "exported", "--parity-windows", "1", "--num-threads", "1")
    assert main(["export", *exported, *consent]) == 0
    rounds = ("--rounds", "1", "--steps-per-round", "2", "--training-log", "further_log")
    model = ("--training-set", "data", "--trained-model", "model", "--output", "further")
    assert main(["train-distributed", *model, *rounds, *recipe, *consent]) == 0
    assert read_card(Path("further")).architecture == card.architecture


def test_images_that_are_too_small_are_refused_by_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    image_set(Path("data"))
    words = ("--training-set", "data", "--output", "model", "--task", "classification", "--network", "vgg16")
    assert main(["train", *words]) == 65
    shown = capfd.readouterr().err
    assert "the images are too small for the network 'vgg16'" in shown
    assert "images of 16 x 12" in shown
