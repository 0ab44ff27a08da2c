"""DistMIS' network and its recipe: the published number of parameters, the loss, and the options that its search is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from monai.losses import DiceLoss

from medweave_core.errors import UsageError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import build_network, load_network
from medweave_steps.networks.distmis import AlongDepth, DistMisUnet, num_parameters
from medweave_steps.tasks.segmentation.loss import dice_cross_entropy
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.network import architecture, seeded_network
from medweave_steps.training.loop.stepper import Stepper
from support.one_label import TASK
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights


def trainable(network: Any) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def config(**options: Any) -> TrainConfig:
    return TrainConfig(training_set=Path("a"), output=Path("b"), **options)


def published(**options: Any) -> DistMisUnet:
    return DistMisUnet(variant="as_published", **options)


def test_the_published_network_has_the_published_number_of_parameters() -> None:
    network = published(depth=152)
    assert (num_parameters(network), trainable(network)) == (406_793, 404_589)


@pytest.mark.parametrize("depth", [16, 32, 152])
def test_the_number_grows_with_the_depth_that_is_normalised_along(depth: int) -> None:
    network = published(depth=depth)
    assert num_parameters(network) == 402_385 + 29 * depth
    assert trainable(network) == 402_385 + 29 * depth // 2


def test_the_described_network_has_the_number_that_its_text_gives() -> None:
    network = DistMisUnet()
    assert (num_parameters(network), trainable(network)) == (352_513, 351_809)
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv3d | torch.nn.ConvTranspose3d)]
    assert sum(trainable(layer) for layer in convolutions) == 351_105


@pytest.mark.parametrize("norm", ["batch", "instance"])
@pytest.mark.parametrize("variant", ["as_described", "as_published"])
def test_an_image_keeps_its_size_and_comes_out_as_one_logit(variant: str, norm: str) -> None:
    depth = {"depth": 16} if variant == "as_published" else {}
    network = build_network(
        {
            "class": "medweave_steps.networks.distmis.DistMisUnet",
            "arguments": {"variant": variant, "in_channels": 4, "norm": norm} | depth,
        }
    )
    assert network(torch.randn(2, 4, 24, 8, 16)).shape == (2, 1, 24, 8, 16)


def test_groups_are_eight_of_channels_or_nineteen_along_the_depth() -> None:
    kinds = torch.nn.GroupNorm
    assert {m.num_groups for m in DistMisUnet(norm="group").modules() if isinstance(m, kinds)} == {8}
    assert {m.num_groups for m in published(norm="group", depth=152).modules() if isinstance(m, kinds)} == {19}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "as_published"}, "multiple of 8"),
        ({"variant": "as_published", "depth": 12}, "multiple of 8"),
        ({"variant": "as_published", "norm": "group", "depth": 16}, "multiple of 152"),
        ({"variant": "as_described", "depth": 16}, "takes no depth"),
    ],
)
def test_a_depth_that_does_not_fit_is_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistMisUnet(**options)


@pytest.mark.slow
def test_normalisation_along_the_depth_makes_each_slice_standard() -> None:
    image = torch.randn(2, 3, 4, 5, 8) * torch.arange(1, 9) + torch.arange(8)
    seen = AlongDepth(torch.nn.BatchNorm3d(8))(image)
    torch.testing.assert_close(seen.mean((0, 1, 2, 3)), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std((0, 1, 2, 3), unbiased=False), torch.ones(8), atol=1e-4, rtol=0)


def loss(**options: Any) -> Any:
    return dice_cross_entropy(dice_weight=1.0, cross_entropy_weight=0.0, over_batch=False, **options)


@pytest.mark.slow
def test_the_dice_loss_is_monais_and_the_papers() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 1, 6, 5, 4, generator=generator, dtype=torch.float64)
    label = (torch.rand(3, 1, 6, 5, 4, generator=generator) < 0.2).double()
    seen = loss(smoothing=0.1)(logits, label)
    torch.testing.assert_close(seen, DiceLoss(sigmoid=True, smooth_nr=0.1, smooth_dr=0.1)(logits, label))
    p, axes = torch.sigmoid(logits), (1, 2, 3, 4)
    dice = (2 * (p * label).sum(axes) + 0.1) / (p.sum(axes) + label.sum(axes) + 0.1)
    torch.testing.assert_close(seen, (1 - dice).mean())


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_the_dice_loss_of_a_perfect_and_of_an_empty_answer(smoothing: float) -> None:
    label = torch.zeros(1, 1, 4, 4, 4)
    label[..., :2] = 1
    far = torch.full_like(label, 50.0)
    assert loss(smoothing=smoothing)(far * (2 * label - 1), label).item() == pytest.approx(0, abs=1e-6)
    empty = loss(smoothing=smoothing)(-far, label).item()
    assert empty == pytest.approx(1 - smoothing / (32 + smoothing), abs=1e-6)


def test_the_gradient_of_the_dice_loss_is_that_of_finite_differences() -> None:
    logits = torch.randn(2, 1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    label = (torch.rand(2, 1, 2, 3, 2) < 0.5).double()
    assert torch.autograd.gradcheck(lambda x: loss(smoothing=0.1)(x, label), logits)


def stepper(**options: Any) -> Stepper:
    values = config(**options)
    network = torch.nn.Conv3d(1, 1, 1)
    return Stepper(
        recipe=values, loss=TASK.open_loss(values), learning_rate=values.learning_rate,
        num_steps=10, network=network, wrapped=network,
        device=torch.device("cpu"), uses_bfloat16=False,
    )  # fmt: skip


def test_the_options_of_the_grid_reach_the_optimiser() -> None:
    (group,) = stepper(beta2=0.99, amsgrad=True, learning_rate=1e-3, schedule="constant").optimiser.param_groups
    assert (group["betas"], group["amsgrad"], group["lr"]) == ((0.9, 0.99), True, 1e-3)
    (group,) = stepper(beta2=0.99).optimiser.param_groups
    assert (group["betas"][1], group["amsgrad"]) == (0.99, False), "the one-cycle schedule leaves beta2 alone"


def test_a_constant_rate_stays() -> None:
    constant = stepper(schedule="constant", learning_rate=1e-3)
    rates = set()
    for _ in range(9):
        rates.add(constant.learning_rate)
        constant.optimiser.step()
        constant.schedule.step()
    assert rates == {1e-3}


def test_a_rise_of_one_step_is_no_division_by_zero() -> None:
    cycle = stepper(warm_up=0.1, learning_rate=1e-3)  # of ten steps
    rates = []
    for _ in range(10):
        rates.append(cycle.learning_rate)
        cycle.optimiser.step()
        cycle.schedule.step()
    assert max(rates) == pytest.approx(1e-3, rel=0.05)
    assert rates[-1] < 1e-5


@pytest.mark.parametrize(("norm", "kind"), [("group", "GroupNorm"), ("instance", "InstanceNorm3d")])
@pytest.mark.parametrize("network", ["unet", "distmis-as-described"])
def test_every_network_takes_every_normalisation(network: str, norm: str, kind: str) -> None:
    built = seeded_network(config(network=network, norm=norm, channels=(4, 12), strides=(2,)), TASK, channels=4)
    kinds = {type(module).__name__ for module in built.modules()}
    assert {name for name in kinds if "Norm" in name} == {kind}


def test_the_published_network_is_bound_to_the_depth_of_its_patches() -> None:
    shape = {"patch_shape": (16, 16, 24), "window_shape": (16, 16, 24)}
    values = config(network="distmis-as-published", **shape)
    assert architecture(values, channels=4)["arguments"]["depth"] == 24
    with pytest.raises(UsageError, match="window-shape"):
        config(network="distmis-as-published", patch_shape=(16, 16, 24), window_shape=(16, 16, 16))
    with pytest.raises(UsageError, match="patch-shape"):
        config(network="distmis-as-published", norm="group", **shape)


def test_options_that_are_not_used_leave_earlier_checkpoints_valid() -> None:
    names = config().identity().keys()
    assert not names & {"network", "norm", "beta2", "amsgrad", "schedule", "dice", "dice_smoothing", "scale_by_ranks"}
    assert config(amsgrad=True, norm="group").identity().items() >= {"amsgrad": True, "norm": "group"}.items()


@pytest.mark.slow
def test_a_trial_of_the_grid_is_trained_and_its_model_opens_again(tmp_path: Path) -> None:
    training_set(tmp_path / "data")
    trial = (
        "--network", "distmis-as-described", "--norm", "group", "--amsgrad", "--beta2", "0.99", "--learning-rate", "5e-4",
        "--schedule", "constant", "--dice", "sample", "--dice-smoothing", "0.1", "--cross-entropy-weight", "0",
        "--window-shape", "24", "24", "16", "--steps", "2", "--scale-by-ranks",
    )  # fmt: skip
    words = ["train", "--training-set", str(tmp_path / "data"), *TINY, *trial, "--num-threads", "1"]
    for name in ("one", "two"):
        assert main([*words, "--output", str(tmp_path / name), "--training-log", str(tmp_path / f"{name}-log"),
                     "--run-report", str(tmp_path / f"{name}.json")]) == 0  # fmt: skip
    card = read_card(tmp_path / "one")
    assert card.training.items() >= {"norm": "group", "amsgrad": True, "beta2": 0.99, "learning_rate": 5e-4}.items()
    assert trainable(load_network(tmp_path / "one", card)) == 351_809 - 3 * 8 * 27
    assert_equal_weights(tmp_path / "one", tmp_path / "two")  # a trial alone has the same result as before
    messages = json.loads((tmp_path / "one.json").read_text())["notices"]
    assert any("batch size 2 × 1 = 2, learning rate 0.0005 × 1 = 0.0005" in str(notice) for notice in messages)


@pytest.mark.slow
def test_the_published_network_computes_the_same_when_it_is_exported(tmp_path: Path) -> None:
    training_set(tmp_path / "data")
    words = ["train", "--training-set", str(tmp_path / "data"), "--output", str(tmp_path / "m"), *TINY]
    words += ["--training-log", str(tmp_path / "log"), "--run-report", str(tmp_path / "r.json"), "--num-threads", "1"]
    words += ["--network", "distmis-as-published", "--steps", "1"]
    assert main([*words, "--patch-shape", "8", "8", "16", "--window-shape", "24", "24", "16"]) == 0
    words = ["export", "--trained-model", str(tmp_path / "m"), "--output", str(tmp_path / "e")]
    assert main([*words, "--num-threads", "1", "--run-report", str(tmp_path / "export.json")]) == 0
    parity = json.loads((tmp_path / "export.json").read_text())["results"]["parity"]
    assert [backend["backend"] for backend in parity][:1] == ["OpenVINO"]
    assert max(backend["max_logit_difference"] for backend in parity) < 1e-3
