"""Small networks that can be cut, and the differences between their stages and the whole network, for every contiguous cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from medweave_steps.networks.distmis import DistMisUnet
from medweave_steps.networks.layer_stack import LayerStack
from medweave_steps.networks.resattnet import ResAttNet
from medweave_steps.networks.resenc import ResEncUnet
from medweave_steps.training.loop.cpu_kernels import replace_kernels
from medweave_steps.training.placement.cut import composed, cut

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


def largest_differences(name: str) -> dict[int, tuple[float, float]]:
    """Return, for each number of stages, the largest difference of outputs and of gradients over all contiguous cuts."""
    build, number, side = NETWORKS[name]
    torch.manual_seed(0)
    network = build().train()
    image = torch.rand(2, 1, side, side, side)
    partitions = cut(network, image)
    assert len(partitions) == number
    whole = network(image)
    loss_of(whole).backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients[:2])
    differences: dict[int, tuple[float, float]] = {}
    for stages in stages_of([module for _, module in partitions]):
        network.zero_grad()
        of_outputs = difference(by_stages(stages, image), whole)
        pairs = zip(network.parameters(), gradients, strict=True)
        of_gradients = max(difference(parameter.grad, gradient) for parameter, gradient in pairs)
        before = differences.get(len(stages), (0.0, 0.0))
        differences[len(stages)] = (max(before[0], of_outputs), max(before[1], of_gradients))
    return differences
