"""A network that is cut into stages computes the outputs and gradients of the whole network, for every contiguous cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from medweave_core.errors import UserInputError

torch = pytest.importorskip("torch")

from medweave_steps.networks.distmis import DistMisUnet  # noqa: E402
from medweave_steps.networks.layer_stack import LayerStack  # noqa: E402
from medweave_steps.networks.resattnet import ResAttNet  # noqa: E402
from medweave_steps.networks.resenc import ResEncUnet  # noqa: E402
from medweave_steps.training.loop.cpu_kernels import replace_kernels  # noqa: E402
from medweave_steps.training.placement.cut import composed, cut  # noqa: E402

MOST_STAGES = 4


def resattnet() -> Any:
    network = ResAttNet(
        in_channels=1, num_classes=3, layers=(1, 1, 1, 1), channels=(2, 4, 4, 8), attention_stages=(2, 4)
    )
    for name, parameter in network.named_parameters():
        if name.endswith("gamma"):
            torch.nn.init.ones_(parameter)
    return network


def unet(**arguments: Any) -> Any:
    from monai.networks.nets import UNet

    network = UNet(3, 1, 2, channels=(4, 4, 8, 8), strides=(1, 2, 2), norm="BATCH", act="RELU", **arguments)
    replace_kernels(network, ("one-channel", "transposed"))
    return network


def resenc(stages: int = 3) -> Any:
    return ResEncUnet(
        in_channels=1, out_channels=2, channels=[4, 4, 8, 8][:stages], strides=[[1] * 3, *[[2] * 3] * (stages - 1)],
        kernels=[[3] * 3] * stages, blocks=[1] * stages,
    )  # fmt: skip


def stack() -> Any:
    conv = {"kind": "conv", "channels": 4, "kernel": 3}
    layers = [
        conv,
        {"kind": "activation", "function": "relu"},
        conv,
        {"kind": "pool", "type": "max", "size": 2},
        {"kind": "dense", "units": "outputs"},
    ]
    return LayerStack(in_channels=1, outputs=2, input_shape=(16, 16, 16), layers=layers)


NETWORKS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "resattnet": (resattnet, 6, 32),
    "unet": (unet, 7, 16),
    "unet with residual units": (lambda: unet(num_res_units=1), 7, 8),
    "distmis": (lambda: DistMisUnet(in_channels=1, norm="batch"), 8, 8),
    "resenc-unet": (resenc, 5, 8),
    "resenc-unet of four stages": (lambda: resenc(4), 7, 16),
    "layer-stack": (stack, 3, 16),
}
"""Network, number of its partitions, and side of its image."""


def loss_of(outputs: Any) -> Any:
    parts = outputs if isinstance(outputs, list) else [outputs]
    return sum((place + 1) * part.square().mean() for place, part in enumerate(parts))


def stages_of(modules: Sequence[Any]) -> Iterator[list[Sequence[Any]]]:
    """Yield every division into 1 to 4 consecutive stages."""
    for number in range(MOST_STAGES):
        for ends in itertools.combinations(range(1, len(modules)), number):
            yield [modules[start:end] for start, end in itertools.pairwise((0, *ends, len(modules)))]


def by_stages(stages: Sequence[Sequence[Any]], image: Any) -> Any:
    """Run stages forward and backward as ranks do: only tensors and their gradients pass from one to the next."""
    passed: list[tuple[tuple[Any, ...], Any]] = []
    value: Any = image
    for modules in stages:
        tensors = value if isinstance(value, tuple) else (value,)
        inputs = tuple(tensor.detach().requires_grad_() for tensor in tensors)
        value = composed(modules, inputs)
        passed.append((inputs, value))
    loss_of(value).backward()
    for (_, outputs), (inputs, _) in zip(reversed(passed[:-1]), reversed(passed), strict=False):
        torch.autograd.backward(outputs, [tensor.grad for tensor in inputs])
    return value


def difference(one: Any, other: Any) -> float:
    if isinstance(one, list):
        assert len(one) == len(other)
        return max(itertools.starmap(difference, zip(one, other, strict=True)))
    return float((one - other).detach().abs().max())


@pytest.mark.parametrize("name", NETWORKS)
def test_every_contiguous_cut_gives_the_outputs_and_gradients_of_the_whole_network(name: str) -> None:
    build, number, side = NETWORKS[name]
    torch.manual_seed(0)
    network = build().train()
    image = torch.rand(2, 1, side, side, side)
    partitions = cut(network, image)
    assert len(partitions) == number
    assert network.training
    whole = network(image)
    loss_of(whole).backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients[:2])
    for stages in stages_of([module for _, module in partitions]):
        network.zero_grad()
        outputs = by_stages(stages, image)
        assert difference(outputs, whole) <= 1e-5
        pairs = zip(network.parameters(), gradients, strict=True)
        assert max(difference(parameter.grad, gradient) for parameter, gradient in pairs) <= 1e-5


def test_deep_supervision_passes_all_logits_to_the_last_stage() -> None:
    network = resenc(4).train()
    image = torch.rand(1, 1, 16, 16, 16)
    modules = [module for _, module in cut(network, image)]
    assert [tuple(logits.shape[2:]) for logits in composed(modules, image)] == [(16,) * 3, (8,) * 3]
    assert composed([module for _, module in cut(network.eval(), image)], image).shape == (1, 2, 16, 16, 16)


class Skipping(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A network with a skip that no partition passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv3d(1, 2, 1), torch.nn.Conv3d(2, 2, 1)
        self.last = torch.nn.Conv3d(4, 1, 1)

    def forward(self, image: Any) -> Any:
        features = self.first(image)
        return self.last(torch.cat([features, self.second(features)], 1))


def test_a_skip_that_cannot_be_passed_on_is_refused_with_its_layer() -> None:
    with pytest.raises(UserInputError, match="cannot be cut into stages") as caught:
        cut(Skipping(), torch.zeros(1, 1, 4, 4, 4))
    assert caught.value.seen == "the layer 'last' takes another tensor than the output of the layer 'second'"


@pytest.mark.parametrize(
    ("partitions", "seen"),
    [
        (lambda net: [("a", net.first), ("b", net.second)], "'last.weight' is in no partition"),
        (lambda net: [("a", net.first), ("b", net.first)], "'first.weight' is in 'b' and in 'a'"),
        (
            lambda net: [("a", net.first), ("b", net.second), ("c", torch.nn.Sequential(Doubled(), net.last))],
            "they compute something else than the network",
        ),
    ],
)
def test_partitions_that_are_not_the_network_are_refused(partitions: Any, seen: str) -> None:
    torch.manual_seed(0)
    network = Skipping()
    network.partitions = lambda: partitions(network)
    with pytest.raises(UserInputError, match="the partitions of the network cannot be used") as caught:
        cut(network, torch.rand(1, 1, 4, 4, 4))
    assert caught.value.seen == seen


class Doubled(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, features: Any) -> Any:
        return torch.cat([features, features], 1)
