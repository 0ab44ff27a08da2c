"""3D-ResAttNet and the recipe of its paper: parameters, partitions, places of the attention, learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import UsageError, UserInputError
from medweave_steps.export.graphs import reference_logits, write_onnx
from medweave_steps.io.model.network import build_network
from medweave_steps.io.model.openvino_ir import write_openvino
from medweave_steps.io.model.parity import compare, judge, openvino_runner
from medweave_steps.networks import network_type
from medweave_steps.runtime.options import build_config
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.network import architecture, sized
from medweave_steps.training.loop.recompute import recompute_activations
from medweave_steps.training.optimizers import build_optimizer, build_schedule

torch = pytest.importorskip("torch")

SHAPE = (32, 40, 32)


def described(name: str = "resattnet18", *, classes: int = 2, **options: Any) -> Any:
    own = network_type(name).Options(**options)
    values: Any = SimpleNamespace(network=name, network_options=own, patch_shape=SHAPE, task="classification")
    return architecture(values, channels=1, out_channels=classes)


def narrow(**options: Any) -> Any:
    """Return a network with 4 to 32 channels, whose attention has an effect."""
    torch.manual_seed(0)
    network = build_network(described(width=1 / 16, **options)).eval()
    for name, parameter in network.named_parameters():
        if name.endswith("gamma"):
            torch.nn.init.ones_(parameter)
    return network


def number(network: Any) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def on_meta(name: str, **options: Any) -> int:
    with torch.device("meta"):
        return number(build_network(described(name, **options)))


@pytest.mark.parametrize(("name", "expected"), [("resattnet18", 33_469_123), ("resattnet34", 63_778_755)])
def test_the_networks_have_the_parameters_of_the_reference(name: str, expected: int) -> None:
    assert on_meta(name) == expected
    without_attention = expected - 328_321
    for stage, own in enumerate((5_201, 20_641, 82_241, 328_321), start=1):
        assert on_meta(name, attention_stages=(stage,)) == without_attention + own
    assert on_meta(name, attention_stages=(3, 4)) == expected + 82_241
    assert on_meta(name, width=0.125) < expected / 60


def test_a_narrow_network_gives_one_logit_per_class() -> None:
    network = build_network(described(classes=3, width=1 / 16)).eval()
    with torch.inference_mode():
        assert network(torch.zeros(2, 1, *SHAPE)).shape == (2, 3)


@pytest.mark.parametrize("stages", [(4,), (2, 4)])
def test_forward_and_gradients_are_those_of_the_partitions(stages: tuple[int, ...]) -> None:
    network = narrow(attention_stages=stages)
    partitions = network.partitions()
    blocks = [f"stage{stage}_block{block}" for stage in (1, 2, 3, 4) for block in (1, 2)]
    assert [name for name, _ in partitions] == ["stem", *blocks, "head"]
    image = torch.rand(2, 1, *SHAPE)

    def gradients(apply: Any) -> tuple[Any, Sequence[Any]]:
        logits = apply(image)
        return logits, torch.autograd.grad(logits.square().sum(), list(network.parameters()))

    def composed(features: Any) -> Any:
        for _, module in partitions:
            features = module(features)
        return features

    whole, cut = gradients(network), gradients(composed)
    assert torch.equal(whole[0], cut[0])
    assert all(torch.equal(one, other) for one, other in zip(whole[1], cut[1], strict=True))


def test_partitions_share_the_weights_and_their_names() -> None:
    network = narrow(attention_stages=(1, 4))
    own = [name for _, module in network.partitions() for name in module.state_dict()]
    assert own == list(network.state_dict())
    parts = [parameter for _, module in network.partitions() for parameter in module.parameters()]
    assert all(one is other for one, other in zip(parts, network.parameters(), strict=True))


def test_recomputed_activations_give_the_same_gradients_block_by_block() -> None:
    image, found = torch.rand(2, 1, *SHAPE), []
    for recompute in (False, True):
        network = narrow().train()
        if recompute:
            recompute_activations(network)
        found.append(torch.autograd.grad(network(image).square().sum(), list(network.parameters())))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    blocks = [name for name, module in network.named_modules() if "forward" in vars(module)]
    assert blocks[:3] == ["stem", "stage1_block1.convolutions", "stage1_block2.convolutions"]


def test_the_attention_follows_its_formula_and_starts_as_identity() -> None:
    attention = narrow().stage4_attention
    image = torch.rand(1, 32, 3, 2, 1)
    query, key, value = (layer(image)[0].flatten(1) for layer in (attention.query, attention.key, attention.value))
    expected = torch.stack([value @ torch.softmax(query[:, place] @ key, dim=0) for place in range(6)], dim=1) + image[
        0
    ].flatten(1)
    torch.testing.assert_close(attention(image)[0].flatten(1), expected)
    torch.nn.init.zeros_(attention.gamma)
    assert torch.equal(attention(image), image)


def test_attention_lies_after_the_stages_that_are_set() -> None:
    names = [name for name, _ in narrow(attention_stages=(3, 1)).named_children()]
    assert [names[names.index(f"stage{stage}_attention") - 1] for stage in (1, 3)] == ["stage1_block2", "stage3_block2"]
    assert "stage4_attention" not in names
    image = torch.rand(1, 1, *SHAPE)
    with torch.inference_mode():
        outputs = [narrow(attention_stages=stages)(image) for stages in ((4,), (3,))]
    assert not torch.equal(*outputs)


@pytest.mark.slow
def test_the_exported_network_gives_the_logits_of_torch(tmp_path: Path) -> None:
    network = narrow(attention_stages=(3, 4))
    windows = list(np.random.default_rng(0).random((2, 1, 1, *SHAPE), dtype=np.float32))
    expected = reference_logits(network, windows, output_shape=(1, 2))
    write_onnx(network, SHAPE, tmp_path / "model.onnx", channels=1)
    write_openvino(tmp_path / "model.onnx", SHAPE, tmp_path / "model.xml", channels=1)
    runner = openvino_runner(tmp_path / "model.xml", 1)
    pairs = [(logits, runner(window)) for logits, window in zip(expected, windows, strict=True)]
    result = compare("OpenVINO", pairs, decide=lambda logits: logits.argmax(1))
    judge(result, logit_tolerance=1e-4, decision_tolerance=0)


def config(**options: Any) -> TrainConfig:
    return build_config(TrainConfig, {"training_set": Path("a"), "output": Path("b"), "preset": "resattnet"} | options)


def test_the_preset_is_the_recipe_of_the_paper() -> None:
    recipe = config()
    assert (recipe.task, recipe.network, recipe.epochs, recipe.batch_size) == ("classification", "resattnet18", 50, 6)
    assert (recipe.optimizer, recipe.momentum, recipe.weight_decay, recipe.augments) == ("sgd", 0.9, 0, False)
    assert (recipe.learning_rate, recipe.schedule, recipe.last_rate) == (1e-4, "geometric-by-epoch", 0.01)
    own = config(network="resattnet34", width=0.25, epochs=3)
    assert (own.network, own.epochs, own.network_options.width, own.batch_size) == ("resattnet34", 3, 0.25, 6)  # type: ignore[attr-defined]


def test_options_of_a_choice_of_the_preset_are_left_out_with_another_choice() -> None:
    own = config(optimizer="adam", schedule="constant", steps=5)
    assert (own.optimizer, own.schedule, own.steps, own.epochs) == ("adam", "constant", 5, None)
    assert config(optimizer="sgd").momentum == 0.9
    with pytest.raises(UsageError, match="--momentum"):
        config(optimizer="adam", momentum=0.8)


def test_the_learning_rate_falls_from_1e_4_to_1e_6_in_50_epochs() -> None:
    recipe = config().for_cases(20, num_channels=1)
    assert (recipe.steps, recipe.epoch_steps) == (200, 4)
    optimizer = build_optimizer(recipe, [torch.nn.Parameter(torch.ones(1))], recipe.learning_rate)
    schedule = build_schedule(
        recipe, optimizer, learning_rate=recipe.learning_rate, num_steps=recipe.steps, epoch_steps=recipe.epoch_steps
    )
    rates = []
    for _ in range(recipe.steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    by_epoch = np.reshape(rates, (50, 4))
    assert (by_epoch == by_epoch[:, :1]).all(), "the rate of an epoch is constant"
    np.testing.assert_allclose(by_epoch[[0, 49], 0], [1e-4, 1e-6], rtol=1e-12)
    np.testing.assert_allclose(by_epoch[:, 0], 1e-4 * 1e-2 ** (np.arange(50) / 49), rtol=1e-12)


@pytest.mark.parametrize("stages", [(0,), (5,), (4, 4)])
def test_stages_that_do_not_exist_are_refused(stages: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="--attention-stages"):
        config(attention_stages=stages)


def test_options_and_data_that_do_not_fit_the_network_are_refused() -> None:
    with pytest.raises(UsageError, match="--attention-stages"):
        config(network="resnet18", attention_stages=(3,))
    with pytest.raises(UsageError, match="does not take images"):
        sized(config(), (64, 64, 1))
    with pytest.raises(UserInputError, match="too small"):
        sized(config(), (32, 32, 24))
