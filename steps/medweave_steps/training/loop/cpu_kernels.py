"""Layers that PyTorch computes slowly on CPUs, computed in another way: an opt-in per network.

`NetworkType.cpu_kernels` names the kernels that are replaced for a network; only medweave's own U-Net has them. Values, weights and
their names stay; results differ from PyTorch's by rounding.

The first and the last layer of a U-Net have the largest images and the fewest channels, but PyTorch's CPU kernels are made for many
channels. Gain, processor time of a training step of the demo's U-Net (10 patches of 32 x 32 x 32 voxels, 1 thread, AMD EPYC,
torch 2.15, medians of 15 alternating steps):

    kernels replaced           bfloat16    float32
    none                        237 ms      272 ms
    one-channel                 132 ms      262 ms
    transposed                  200 ms      367 ms
    one-channel, transposed     134 ms      273 ms

`transposed` gains nothing beside `one-channel` there; the U-Net keeps it, because trained weights depend on it bit for bit.

With `one-channel`, the 27 shifted copies of the single channel are the columns of a matrix, so that one wide product does the work;
its adjoint sums 27 shifted copies.

Suffix legend: B batch, C channel of the wide side, T tap of the kernel, N voxel, I J K voxel axes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection
from typing import Any

from medweave_steps.networks import CpuKernel
from medweave_steps.runtime.imports import require


def replace_kernels(network: Any, kernels: Collection[CpuKernel]) -> None:
    """Replace the `forward` of a network's 3-D convolutions on the CPU.

    Args:
        network: changed in place; its weights and their names stay.
        kernels: `one-channel` computes layers with one channel on one side as matrix products; `transposed` computes other
            transposed convolutions without stride as plain convolutions with the kernel flipped.
    """
    torch = require("torch", extra="train")
    for layer in network.modules():
        if not isinstance(layer, torch.nn.Conv3d | torch.nn.ConvTranspose3d):
            continue
        is_transposed = isinstance(layer, torch.nn.ConvTranspose3d)
        if "one-channel" in kernels and has_one_channel(layer):
            layer.forward = functools.partial(_one_channel, layer)
        elif "transposed" in kernels and is_transposed and set(layer.stride) == {1} and layer.groups == 1:
            layer.forward = functools.partial(_flipped_convolution, layer)


def _one_channel(layer: Any, image_BCIJK: Any) -> Any:
    torch = require("torch", extra="train")
    if image_BCIJK.device.type != "cpu":  # PyTorch's kernels for GPUs are fast enough
        return type(layer).forward(layer, image_BCIJK)
    if isinstance(layer, torch.nn.ConvTranspose3d):
        return to_one_channel(image_BCIJK, layer.weight, layer.bias)
    return from_one_channel(image_BCIJK[:, 0], layer.weight, layer.bias)


def _flipped_convolution(layer: Any, image_BCIJK: Any, output_size: Any = None) -> Any:
    torch = require("torch", extra="train")
    kernel = layer.weight.flip(2, 3, 4).transpose(0, 1)
    padding = [
        dilation * (size - 1) - pad
        for dilation, size, pad in zip(layer.dilation, layer.kernel_size, layer.padding, strict=True)
    ]
    return torch.nn.functional.conv3d(image_BCIJK, kernel, layer.bias, padding=padding, dilation=layer.dilation)


def has_one_channel(layer: Any) -> bool:
    """Return whether `from_one_channel` or `to_one_channel` computes a layer: stride 1, and an output of the input's size."""
    torch = require("torch", extra="train")
    keeps_size = all(
        size % 2 == 1 and pad == size // 2 and step == dilation == 1
        for size, pad, step, dilation in zip(
            layer.kernel_size, layer.padding, layer.stride, layer.dilation, strict=True
        )
    )
    if not keeps_size or layer.groups != 1 or layer.bias is None or layer.padding_mode != "zeros":
        return False
    if isinstance(layer, torch.nn.ConvTranspose3d):
        return bool(layer.out_channels == 1)
    return bool(layer.in_channels == 1)


def from_one_channel(image_BIJK: Any, weight: Any, bias: Any) -> Any:
    """Return the result of `conv3d` with padding that keeps the size, in the precision of autocast.

    Args:
        image_BIJK: the single channel.
        weight: [C, 1, *kernel].
        bias: [C].
    Returns:
        [B, C, I, J, K].
    """
    return _functions()[0].apply(_in_working_precision(image_BIJK), weight, bias)


def to_one_channel(image_BCIJK: Any, weight: Any, bias: Any) -> Any:
    """Return the result of `conv_transpose3d` with padding that keeps the size; the taps are summed in float32 or better.

    Args:
        weight: [C, 1, *kernel].
        bias: [1].
    Returns:
        [B, 1, I, J, K].
    """
    return _functions()[1].apply(_in_working_precision(image_BCIJK), weight, bias)


def _in_working_precision(image: Any) -> Any:
    torch = require("torch", extra="train")
    if not torch.is_autocast_enabled(image.device.type) or image.dtype == torch.float64:
        return image
    return image.to(torch.get_autocast_dtype(image.device.type))


def columns(image_BIJK: Any, kernel: tuple[int, ...]) -> Any:
    """Return [B, T, N]: the image shifted by each tap, zeros beyond the border."""
    torch = require("torch", extra="train")
    size_I, size_J, size_K = image_BIJK.shape[1:]
    padded = torch.nn.functional.pad(image_BIJK, [size // 2 for size in reversed(kernel) for _ in range(2)])
    # Shifted along K first: the other shifts then copy whole planes, not single rows.
    shifted_BcIJK = padded.unfold(3, size_K, 1).permute(0, 3, 1, 2, 4).contiguous()
    windows_BcabKIJ = shifted_BcIJK.unfold(2, size_I, 1).unfold(3, size_J, 1)
    return windows_BcabKIJ.permute(0, 2, 3, 1, 5, 6, 4).reshape(len(image_BIJK), -1, size_I * size_J * size_K)


def sum_of_columns(columns_BTN: Any, kernel: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Return the adjoint of `columns`: [B, I, J, K], float32 or better, for an image of this shape (I, J, K)."""
    torch = require("torch", extra="train")
    parts = columns_BTN.view(len(columns_BTN), -1, *shape)
    total = columns_BTN.new_zeros(
        (len(columns_BTN), *(n + size - 1 for n, size in zip(shape, kernel, strict=True))),
        dtype=torch.promote_types(columns_BTN.dtype, torch.float32),
    )
    for tap, shift in enumerate(itertools.product(*map(range, kernel))):
        total[:, *(slice(a, a + n) for a, n in zip(shift, shape, strict=True))] += parts[:, tap]
    return total[:, *(slice(size // 2, size // 2 + n) for n, size in zip(shape, kernel, strict=True))]


@functools.cache
def _functions() -> tuple[Any, Any]:
    """Return the two autograd functions, defined on first use because importing this module must not import torch."""
    torch = require("torch", extra="train")
    once = torch.autograd.function.once_differentiable

    def matrix_of(weight: Any, dtype: Any, batch: int) -> Any:
        matrix_CT = weight.to(dtype).reshape(len(weight), -1)
        return matrix_CT.expand(batch, *matrix_CT.shape)

    def gradient_of(weight: Any, image_BCN: Any, columns_BTN: Any) -> Any:
        parts = torch.bmm(image_BCN, columns_BTN.transpose(1, 2))
        return parts.to(weight.dtype).sum(0).reshape(weight.shape)

    class FromOneChannel(torch.autograd.Function):  # type: ignore[name-defined,misc]  # torch is not imported for types
        @staticmethod
        def forward(ctx: Any, image_BIJK: Any, weight: Any, bias: Any) -> Any:
            columns_BTN = columns(image_BIJK, weight.shape[2:])
            ctx.save_for_backward(columns_BTN, weight)
            matrix_BCT = matrix_of(weight, image_BIJK.dtype, len(image_BIJK))
            result = torch.baddbmm(bias.to(image_BIJK.dtype)[:, None], matrix_BCT, columns_BTN)
            return result.view(len(result), -1, *image_BIJK.shape[1:])

        @staticmethod
        @once  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient_BCIJK: Any) -> Any:
            columns_BTN, weight = ctx.saved_tensors
            gradient_BCN = gradient_BCIJK.to(columns_BTN.dtype).flatten(2)
            of_image = None
            if ctx.needs_input_grad[0]:
                matrix_BCT = matrix_of(weight, columns_BTN.dtype, len(columns_BTN))
                taps = torch.bmm(matrix_BCT.transpose(1, 2), gradient_BCN)
                of_image = sum_of_columns(taps, weight.shape[2:], gradient_BCIJK.shape[2:]).to(columns_BTN.dtype)
            of_bias = gradient_BCN.to(weight.dtype).sum((0, 2))
            return of_image, gradient_of(weight, gradient_BCN, columns_BTN), of_bias

    class ToOneChannel(torch.autograd.Function):  # type: ignore[name-defined,misc]  # torch is not imported for types
        @staticmethod
        def forward(ctx: Any, image_BCIJK: Any, weight: Any, bias: Any) -> Any:
            image_BCN = image_BCIJK.flatten(2)
            ctx.save_for_backward(image_BCN, weight)
            matrix_BCT = matrix_of(weight, image_BCIJK.dtype, len(image_BCIJK))
            taps = torch.bmm(matrix_BCT.transpose(1, 2), image_BCN)
            return sum_of_columns(taps, weight.shape[2:], image_BCIJK.shape[2:])[:, None] + bias

        @staticmethod
        @once  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient_B1IJK: Any) -> Any:
            image_BCN, weight = ctx.saved_tensors
            shifted = columns(gradient_B1IJK[:, 0].to(image_BCN.dtype), weight.shape[2:])
            of_image = torch.bmm(matrix_of(weight, image_BCN.dtype, len(image_BCN)), shifted)
            of_weight = gradient_of(weight, image_BCN, shifted)
            return of_image.view(*image_BCN.shape[:2], *gradient_B1IJK.shape[2:]), of_weight, gradient_B1IJK.sum()[None]

    return FromOneChannel, ToOneChannel
