"""Channels are removed from every registered kind of network, and a card's architecture builds the smaller network again."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Callable, Mapping
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
    "densenet": (
        "medweave_steps.networks.monai_classifiers.DenseNet",
        {
            "spatial_dims": 2, "in_channels": 3, "num_classes": 4, "init_features": 8, "growth_rate": 4, "blocks": [2, 2, 2, 2],
        },
        (3, 64, 64, 1),
    ),
    "layer stack": (
        "medweave_steps.networks.layer_stack.LayerStack",
        {
            "in_channels": 3, "outputs": 2, "input_shape": [16, 16, 1],
            "layers": [
                {"kind": "conv", "channels": 8, "kernel": 3}, {"kind": "norm", "type": "batch"},
                {"kind": "activation", "function": "gelu"}, {"kind": "conv", "channels": 8, "kernel": 3, "groups": 8},
                {"kind": "pool", "type": "max", "size": 2}, {"kind": "conv", "channels": 12, "kernel": 3},
                {"kind": "norm", "type": "instance"}, {"kind": "dense", "units": 10},
                {"kind": "activation", "function": "relu"}, {"kind": "dense", "units": "outputs"},
            ],
        },
        (3, 16, 16, 1),
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


class Written(torch.nn.Module):  # type: ignore[misc]
    """A network of two convolutions and a last one, with a forward of its own."""

    def __init__(self, forward: Callable[[Any, Any], Any], *, joined: int = 8) -> None:
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Conv2d(i, 8, 1) for i in (1, 8, joined))
        self.line = torch.nn.Conv1d(8, 2, 1)
        self.own_forward = forward

    def forward(self, image: Any) -> Any:
        return self.own_forward(self, image)


def _written_into(net: Any, image: Any) -> Any:
    first = net.first(image)
    joined = net.second(first)
    joined[:, :8] = first.relu()
    return net.last(joined)


@pytest.mark.parametrize(
    ("forward", "joined", "removable"),
    [
        (lambda net, x: net.last(torch.add(net.first(x), other=net.second(net.first(x)))), 8, []),
        (_written_into, 8, []),
        (lambda net, x: net.last(net.second(net.first(x)).data), 8, [("first",)]),
        (lambda net, x: net.line(net.first(x).mean(1)), 8, []),  # as many rows as channels
        (lambda net, x: net.line(net.first(x).mean(2)), 8, [("first",)]),
        (lambda net, x: net.last(torch.cat([net.first(x), net.second(net.first(x))], axis=1)), 16, [("first",), ("second",)]),
        (lambda net, x: net.last(torch.transpose(net.first(x), dim0=2, dim1=3)), 8, [("first",)]),
        (lambda net, x: {"logits": net.last(net.first(x))}, 8, [("first",)]),
    ],
)  # fmt: skip
def test_functions_of_a_network_are_followed_or_make_its_channels_permanent(
    forward: Callable[[Any, Any], Any], joined: int, removable: list[tuple[str, ...]]
) -> None:
    network = Written(forward, joined=joined).eval()
    graph = trace_channels(network, (1, 8, 8))
    assert [group.layers for group in graph.groups()] == removable
    image = torch.randn(1, 1, 8, 8)
    seen, expected = graph.remove(network, half_of(graph))(image), network(image)
    assert [tuple(value.shape) for value in _values(seen)] == [tuple(value.shape) for value in _values(expected)]


def _values(output: Any) -> list[Any]:
    return list(output.values()) if isinstance(output, dict) else [output]


def test_layers_that_share_a_weight_keep_their_channels() -> None:
    network = Written(lambda net, x: net.last(net.second(net.first(x))))
    network.last.weight = network.second.weight
    graph = trace_channels(network, (1, 8, 8))
    assert not graph.groups()
    assert graph.permanent["first"] == "second calls conv2d, through which channels are not followed"


def test_activations_are_freed_while_the_channels_are_followed() -> None:
    freed = []

    def forward(net: Any, image: Any) -> Any:
        first = net.first(image)
        reference, first = weakref.ref(first), net.second(first)
        freed.append(reference() is None)
        return net.last(first)

    trace_channels(Written(forward), (1, 8, 8))
    assert freed == [True]


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
