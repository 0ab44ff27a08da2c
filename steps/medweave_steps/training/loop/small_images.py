"""Convolutions of images that are smaller than the kernel, computed in float32 in a training in bfloat16 on a CPU.

PyTorch 2.15 (oneDNN) gives them gradients of their weights with values from memory that was never written, on processors with
AVX-512 and BF16: with a 3 x 3 x 3 kernel for all images of depth 2, with 3 x 3 and a stride of 2 for a width of 1. They differ from
run to run, and are NaN or wrong by their whole size. Result and gradient of the image are right, and so is everything in float32.
These layers are the smallest ones of a network: their time does not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from medweave_steps.runtime.imports import require


def compute_small_images_in_float32(network: Any) -> None:
    """Replace the `forward` of a network's convolutions; their results for larger images stay as they are.

    Args:
        network: changed in place; its weights and their names stay.
    """
    convolution = require("torch.nn.modules.conv", extra="train")._ConvNd
    for layer in network.modules():
        if isinstance(layer, convolution):
            layer.forward = functools.partial(_forward, layer.kernel_size, layer.dilation, layer.forward)


def _forward(
    kernel: tuple[int, ...], dilation: tuple[int, ...], forward: Callable[..., Any], image: Any, *sizes: Any
) -> Any:
    reaches = (step * (size - 1) + 1 for size, step in zip(kernel, dilation, strict=True))
    if all(size >= reach for size, reach in zip(image.shape[-len(kernel) :], reaches, strict=True)):
        return forward(image, *sizes)
    torch = require("torch", extra="train")
    with torch.autocast(image.device.type, enabled=False):
        return forward(image.float(), *sizes)
