"""Channels are removed from every registered kind of network, and a card's architecture builds the smaller network again."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from medweave_core.errors import UserInputError
from medweave_steps.io.model.network import build_network

torch = pytest.importorskip("torch")

from medweave_steps.networks.channel_graph import ChannelGraph, trace_channels  # noqa: E402
from medweave_steps.networks.channels import channels_of, sizes_of  # noqa: E402

UNET = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2, "channels": [8, 12, 16], "strides": [2, 2]}
CLASSES = "medweave_steps.networks.classifiers"
NETWORKS: Mapping[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "unet": ("monai.networks.nets.UNet", UNET | {"num_res_units": 2, "norm": "BATCH", "act": "RELU"}, (1, 8, 8, 8)),
    "unet with PReLU": ("monai.networks.nets.UNet", UNET | {"norm": "INSTANCE"}, (1, 8, 8, 8)),
    "distmis": ("medweave_steps.networks.distmis.DistMisUnet", {"in_channels": 2}, (2, 16, 16, 16)),
    "resenc": (
        "medweave_steps.networks.resenc.ResEncUnet",
        {
            "in_channels": 1, "out_channels": 2, "channels": [8, 12, 16], "strides": [[1] * 3, [2] * 3, [2] * 3],
            "kernels": [[3] * 3] * 3, "blocks": [1, 2, 1],
        },
        (1, 8, 8, 8),
    ),
    "vgg16": (f"{CLASSES}.Vgg16", {"in_channels": 3, "num_classes": 4, "image_shape": [64, 64], "width": 0.1}, (3, 64, 64, 1)),
    "mobilenet": (f"{CLASSES}.MobileNet", {"spatial_dims": 2, "in_channels": 3, "num_classes": 4, "width": 0.1}, (3, 32, 32, 1)),
    "mobilenet of volumes": (
        f"{CLASSES}.MobileNet", {"spatial_dims": 3, "in_channels": 1, "num_classes": 4, "width": 0.1}, (1, 32, 32, 32),
    ),
    "resnet": (
        "medweave_steps.networks.monai_classifiers.ResNet",
        {
            "spatial_dims": 2, "in_channels": 3, "num_classes": 4, "block": "bottleneck", "layers": [1, 1, 1, 1],
            "channels": [4, 4, 8, 8],
        },
        (3, 32, 32, 1),
    ),
}  # fmt: skip
ARCHITECTURES = {
    name: ({"class": class_name, "arguments": arguments}, shape)
    for name, (class_name, arguments, shape) in NETWORKS.items()
}


def network_of(name: str) -> tuple[Any, ChannelGraph, tuple[int, ...]]:
    """Return a network whose statistics and norms are not those of a new one, and its channels."""
    architecture, shape = ARCHITECTURES[name]
    torch.manual_seed(1)
    network = build_network(architecture).eval()
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return network, trace_channels(network, shape), shape


def half_of(graph: ChannelGraph) -> list[int]:
    draw = random.Random(0)
    return [number for group in graph.groups() for number in draw.sample(group.channels, len(group.channels) // 2)]


def silence(network: Any, graph: ChannelGraph, removed: set[int]) -> None:
    """Set everything that makes or shifts these channels to zero."""
    for name, layer in graph.layers.items():
        module = network.get_submodule(name)
        places = [place for place, number in enumerate(layer.outputs) if graph.root(number) in removed]
        if getattr(module, "weight", None) is not None and not isinstance(module, torch.nn.PReLU):
            is_transposed = isinstance(module, torch.nn.ConvTranspose3d)
            (module.weight.data.transpose(0, 1) if is_transposed else module.weight.data)[places] = 0
        if getattr(module, "bias", None) is not None:
            module.bias.data[places] = 0
        if getattr(module, "running_mean", None) is not None:
            module.running_mean[places] = 0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_network_without_channels_computes_what_it_computes_with_silent_ones(name: str) -> None:
    network, graph, shape = network_of(name)
    removed = half_of(graph)
    smaller = graph.remove(network, removed)
    silence(network, graph, set(removed))
    image = torch.randn(1, *shape)
    assert torch.allclose(smaller(image), network(image), atol=1e-4, rtol=1e-4)
    assert sum(weight.numel() for weight in smaller.parameters()) < sum(w.numel() for w in network.parameters())


@pytest.mark.parametrize("name", [*ARCHITECTURES, "distmis as published"])
def test_class_arguments_and_channels_of_a_card_build_the_smaller_network(name: str) -> None:
    published = {"variant": "as_published", "in_channels": 4, "depth": 16}
    ARCHITECTURES.setdefault(
        "distmis as published",
        ({"class": "medweave_steps.networks.distmis.DistMisUnet", "arguments": published}, (4, 16, 16, 16)),
    )
    network, graph, shape = network_of(name)
    smaller, architecture = graph.remove(network, half_of(graph)), ARCHITECTURES[name][0]
    channels = channels_of(smaller, build_network(architecture))
    again = build_network(json.loads(json.dumps({**architecture, "channels": channels}))).eval()
    again.load_state_dict(smaller.state_dict())
    image = torch.randn(1, *shape)
    assert torch.equal(again(image), smaller(image))
    assert trace_channels(again, shape).macs < graph.macs


def test_multiplications_are_those_of_the_layers() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(256, 5))
    assert trace_channels(network, (3, 8, 8)).macs == 64 * 4 * 27 + 256 * 5


def test_outputs_and_layers_before_unknown_functions_are_permanent_and_named() -> None:
    class Sorted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = (torch.nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, image: Any) -> Any:
            return self.last(self.second(self.first(image).sort(dim=1).values))

    graph = trace_channels(Sorted(), (4, 8, 8))
    assert [group.layers for group in graph.groups()] == [("second",)]
    assert graph.permanent["last"] == "an output of the network"
    assert graph.permanent["first"] == "the network calls sort, through which channels are not followed"


def test_group_normalization_is_named_as_the_reason() -> None:
    arguments = UNET | {"norm": ["GROUP", {"num_groups": 2}], "act": "RELU"}
    graph = trace_channels(build_network({"class": "monai.networks.nets.UNet", "arguments": arguments}), (1, 8, 8, 8))
    assert not graph.groups()
    assert "model.0.adn.N calls group_norm" in graph.permanent["model.0.conv"]


@pytest.mark.parametrize(
    "channels",
    [{"model.9": [1, 4]}, {"model.0.conv": [1, 9]}, {"model.0.conv": [0, 4]}, {"model.0.conv": 4}, {"model.0.adn.A": [1, 1]}, [4]],
)  # fmt: skip
def test_channels_that_the_network_does_not_have_are_refused(channels: Any) -> None:
    architecture = {"class": "monai.networks.nets.UNet", "arguments": UNET | {"act": "RELU"}, "channels": channels}
    with pytest.raises(UserInputError, match="network of the model card cannot be built"):
        build_network(architecture)


def test_grouped_convolutions_have_no_channels_to_remove() -> None:
    assert sizes_of(torch.nn.Conv2d(4, 8, 3, groups=2)) is None
    assert sizes_of(torch.nn.Conv2d(4, 4, 3, groups=4)) == (4, 4)
