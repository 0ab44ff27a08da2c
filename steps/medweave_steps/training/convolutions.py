"""Transposed convolutions without a stride, computed as the convolutions that they are."""

from __future__ import annotations

import functools
from typing import Any

from medweave_steps.runtime.imports import require


def compute_as_convolutions(network: Any) -> None:
    """Changes how a network computes, not what: weights and their names stay; the kernel is turned round in each pass.

    On CPUs PyTorch computes a transposed convolution in its slowest way; the last layer of the U-Net, with the largest images,
    is one.
    """
    torch = require("torch", extra="train")
    for layer in network.modules():
        if isinstance(layer, torch.nn.ConvTranspose3d) and set(layer.stride) == {1} and layer.groups == 1:
            layer.forward = functools.partial(_turned_convolution, layer)


def _turned_convolution(layer: Any, image_BCIJK: Any, output_size: Any = None) -> Any:
    torch = require("torch", extra="train")
    kernel = layer.weight.flip(2, 3, 4).transpose(0, 1)
    padding = [
        dilation * (size - 1) - pad
        for dilation, size, pad in zip(layer.dilation, layer.kernel_size, layer.padding, strict=True)
    ]
    return torch.nn.functional.conv3d(image_BCIJK, kernel, layer.bias, padding=padding, dilation=layer.dilation)
