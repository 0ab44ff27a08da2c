"""Gradients in bfloat16 of convolutions whose kernel is larger than the image."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from medweave_steps.training.loop.small_images import compute_small_images_in_float32

CASES = {
    "3x3x3 at depth 2": (torch.nn.Conv3d(16, 16, 3, padding=1), (2, 16, 2, 4, 4)),
    "3x3x3 on 2x2x2": (torch.nn.Conv3d(16, 16, 3, padding=1), (2, 16, 2, 2, 2)),
    "3x3x3 with stride on 1x1x1": (torch.nn.Conv3d(16, 16, 3, stride=2, padding=1), (2, 16, 1, 1, 1)),
    "3x3 with stride at width 1": (torch.nn.Conv2d(64, 64, 3, stride=2, padding=1), (2, 64, 4, 1)),
    "7x7 on 1x1": (torch.nn.Conv2d(64, 64, 7, stride=2, padding=3), (2, 64, 1, 1)),
    "dilated 3x3 on 4x4": (torch.nn.Conv2d(16, 16, 3, padding=2, dilation=2), (2, 16, 4, 4)),
    "16 on 3": (torch.nn.Conv1d(16, 16, 16, padding=8), (2, 16, 3)),
    "transposed 3x3x3 on 2x2x2": (torch.nn.ConvTranspose3d(16, 16, 3, padding=1), (2, 16, 2, 2, 2)),
    "transposed 3x3 with stride on 1x1": (torch.nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1), (2, 64, 1, 1)),
}


def gradient(layer: Any, image: torch.Tensor, *, bfloat16: bool) -> torch.Tensor:
    """Return the gradient of the weights, after memory was freed that contains NaN."""
    layer.weight.grad = None
    freed = [torch.full((1 << 18,), float("nan")) for _ in range(8)]
    del freed
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        result = layer(image)
    result.float().square().sum().backward()
    computed: torch.Tensor = layer.weight.grad
    return computed


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_images_smaller_than_the_kernel_are_those_of_float32(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = CASES[name]
    image = torch.randn(shape)
    expected = gradient(layer, image, bfloat16=False)
    compute_small_images_in_float32(layer)
    for _ in range(4):
        assert torch.equal(gradient(layer, image, bfloat16=True), expected)


def test_larger_images_are_computed_in_bfloat16_as_before() -> None:
    torch.manual_seed(0)
    layer, image = torch.nn.Conv3d(16, 16, 3, padding=1), torch.randn(2, 16, 3, 4, 3)
    expected = gradient(layer, image, bfloat16=True)
    compute_small_images_in_float32(layer)
    assert torch.equal(gradient(layer, image, bfloat16=True), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(image).dtype == torch.bfloat16
