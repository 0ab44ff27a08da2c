"""How a network computes quickly where it is: in which order its weights lie, and layers that PyTorch is slow at. What it computes
does not change."""

from __future__ import annotations

import functools
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.training.loop.one_channel import from_one_channel, has_one_channel, to_one_channel


def on_device(network: Any, device: Any) -> Any:
    """Puts a network where it computes; on a GPU with the channels of each voxel side by side.

    In torch's usual order its batch norm has one block of threads for each channel: with the 8 channels that a network begins with
    most of a GPU is idle, for more than half of a step.
    """
    torch = require("torch", extra="train")
    network = network.to(device)
    for weight in network.parameters() if device.type == "cuda" else ():
        if weight.dim() == 5:
            # Not `contiguous`: it leaves the strides of a single channel as they are, and by those the layer's result would lie.
            weight.data = weight.data.to(memory_format=torch.channels_last_3d)
    return network


def compute_quickly(network: Any) -> None:
    """Changes how a network computes on the CPU; weights and their names stay.

    Layers with one channel on one side become matrix products. Other transposed convolutions without a stride become the
    convolutions that they are, the kernel turned round in each pass: PyTorch has its slowest way for them.
    """
    torch = require("torch", extra="train")
    for layer in network.modules():
        if not isinstance(layer, torch.nn.Conv3d | torch.nn.ConvTranspose3d):
            continue
        if has_one_channel(layer):
            layer.forward = functools.partial(_one_channel, layer)
        elif isinstance(layer, torch.nn.ConvTranspose3d) and set(layer.stride) == {1} and layer.groups == 1:
            layer.forward = functools.partial(_turned_convolution, layer)


def _one_channel(layer: Any, image_BCIJK: Any) -> Any:
    torch = require("torch", extra="train")
    if image_BCIJK.device.type != "cpu":  # a GPU's kernels have no such weakness
        return type(layer).forward(layer, image_BCIJK)
    if isinstance(layer, torch.nn.ConvTranspose3d):
        return to_one_channel(image_BCIJK, layer.weight, layer.bias)
    return from_one_channel(image_BCIJK[:, 0], layer.weight, layer.bias)


def _turned_convolution(layer: Any, image_BCIJK: Any, output_size: Any = None) -> Any:
    torch = require("torch", extra="train")
    kernel = layer.weight.flip(2, 3, 4).transpose(0, 1)
    padding = [
        dilation * (size - 1) - pad
        for dilation, size, pad in zip(layer.dilation, layer.kernel_size, layer.padding, strict=True)
    ]
    return torch.nn.functional.conv3d(image_BCIJK, kernel, layer.bias, padding=padding, dilation=layer.dilation)
