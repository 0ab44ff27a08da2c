"""The residual-encoder U-Net and deep supervision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave_core.errors import UsageError
from medweave_steps.io.model.network import build_network
from medweave_steps.networks import ResEncOptions
from medweave_steps.tasks.segmentation.loss import dice_cross_entropy
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.network import architecture
from medweave_steps.training.loop.deep_supervision import output_weights, with_deep_supervision

torch = pytest.importorskip("torch")

SMALL: dict[str, Any] = {
    "in_channels": 2, "out_channels": 3, "channels": [4, 6, 8, 8],
    "strides": [[1, 1, 1], [2, 2, 1], [2, 2, 2], [2, 2, 2]],
    "kernels": [[3, 3, 1], [3, 3, 3], [3, 3, 3], [3, 3, 3]],
    "blocks": [1, 2, 1, 1],
}  # fmt: skip


def small(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build_network({"class": "medweave_steps.networks.resenc.ResEncUnet", "arguments": SMALL | changes})


def config(**options: Any) -> TrainConfig:
    plain = {"network": "resenc-unet", "network_options": ResEncOptions(), "window_shape": (16, 16, 16)}
    return TrainConfig(training_set=Path("a"), output=Path("b"), **plain | {"patch_shape": (16, 16, 16)} | options)


def test_the_number_of_weights_is_that_of_the_published_implementation() -> None:
    # dynamic-network-architectures 0.4.4, ResidualEncoderUNet with 6 stages, 4 image channels and 1 output channel; its head at the
    # lowest resolution, 321 weights without effect, is not built here.
    options = {
        "in_channels": 4, "out_channels": 1, "channels": [32, 64, 128, 256, 320, 320],
        "strides": [[1] * 3, *[[2] * 3] * 5], "kernels": [[3] * 3] * 6, "blocks": [1, 3, 4, 6, 6, 6],
    }  # fmt: skip
    with torch.device("meta"):
        network = small(**options)
    assert sum(weight.numel() for weight in network.parameters()) == 102_351_557 - 321


def test_training_returns_every_resolution_and_evaluation_the_full_one() -> None:
    network, image = small(), torch.randn(2, 2, 16, 16, 8)
    logits = network(image)
    assert [tuple(one.shape) for one in logits] == [(2, 3, 16, 16, 8), (2, 3, 8, 8, 8)]
    assert torch.equal(network.eval()(image), logits[0])
    assert torch.equal(small(deep_supervision=False)(image), small(deep_supervision=False).eval()(image))


def test_every_weight_is_trained() -> None:
    network = small()
    loss = sum(one.square().mean() for one in network(torch.randn(1, 2, 16, 16, 8)))
    loss.backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_an_image_that_the_strides_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiples of \[8, 8, 4\]"):
        small()(torch.zeros(1, 2, 16, 16, 6))


def test_the_loss_of_one_output_is_the_loss_itself() -> None:
    plain = dice_cross_entropy(dice_weight=1, cross_entropy_weight=1)
    logits, label = torch.randn(2, 1, 8, 8, 8), (torch.rand(2, 1, 8, 8, 8) > 0.7).float()
    assert torch.equal(with_deep_supervision(plain)(logits, label), plain(logits, label))
    assert torch.equal(with_deep_supervision(plain)([logits], label), plain(logits, label))


def test_lower_resolutions_count_half_each_against_the_label_by_nearest_neighbor() -> None:
    assert output_weights(3) == pytest.approx([4 / 7, 2 / 7, 1 / 7])

    def difference(logits: Any, label: Any) -> Any:
        return (logits - label).abs().mean()

    label = torch.zeros(1, 1, 4, 4, 2)
    label[0, 0, 2:] = 1
    half = torch.tensor([0.0, 1.0]).reshape(1, 1, 2, 1, 1).expand(1, 1, 2, 2, 2)
    loss = with_deep_supervision(difference)
    assert loss([label, half], label) == 0
    assert loss([label, 1 - half], label) == pytest.approx(1 / 3)
    assert loss([1 - label, half], label) == pytest.approx(2 / 3)


def test_options_describe_each_stage() -> None:
    plain = architecture(config(), channels=2)["arguments"]
    assert plain["strides"] == [[1, 1, 1], [1, 1, 1], [2, 2, 2], [2, 2, 2], [2, 2, 2]]
    assert (plain["kernels"], plain["blocks"]) == ([[3, 3, 3]] * 5, [1, 3, 4, 6, 6])
    options = ResEncOptions(
        stage_strides=("1x1x1", "2x2x1", "2x2x2"), stage_kernels=("3x3x1", "3x3x3", "3x3x3"), encoder_blocks=(1, 1, 2)
    )
    own = config(channels=(4, 8, 8), strides=(2, 2), network_options=options, patch_shape=(16, 16, 18))
    arguments = architecture(own)["arguments"]
    assert arguments["strides"] == [[1, 1, 1], [2, 2, 1], [2, 2, 2]]
    assert (arguments["kernels"][0], arguments["blocks"], own.patch_multiple) == ([3, 3, 1], [1, 1, 2], 2)


STAGES: dict[str, Any] = {"channels": (4, 8), "strides": (2,)}


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"stage_strides": ("1x1x1", "2x2")}, {}, "stage-strides"),
        ({"stage_strides": ("1x1x1",)}, {}, "stage-strides"),
        ({"stage_strides": ("2x2x2", "2x2x2")}, {}, "stage-strides"),
        ({"stage_kernels": ("3x3x3", "3x3x2")}, {}, "stage-kernels"),
        ({"stage_kernels": ("3x3x3", "3xax3")}, {}, "stage-kernels"),
        ({"encoder_blocks": (1, 0)}, {}, "encoder-blocks"),
        ({"stage_strides": ("1x1x1", "2x1x1")}, {"patch_shape": (15, 16, 16)}, "patch-shape"),
        ({}, {"window_shape": (16, 16, 15)}, "window-shape"),
    ],
)
def test_options_of_stages_that_do_not_fit_are_refused(
    options: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=f"--{message}"):
        config(network_options=ResEncOptions(**options), **STAGES | changes)


def test_a_block_starts_as_its_shortcut() -> None:
    network, image = small(blocks=[1, 1, 1, 1]), torch.randn(1, 2, 16, 16, 8)
    stem = network.stem(image)
    assert torch.equal(network.encoder[0](stem), torch.nn.functional.leaky_relu(stem, 0.01))
