"""Convolutions in any number of spatial axes and dense layers in numpy, one product of matrices for each place of the kernel.

Suffix legend: B batch, C channel, S one or more spatial axes, G groups, O outputs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.quantize.three_step.graph import attribute

FloatArray = npt.NDArray[np.float64]


def multiply(node: Any, values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the product of a Gemm or MatMul node."""
    return values @ (weights.T if attribute(node, "transB", 0) else weights)


def convolve(node: Any, values_BCS: FloatArray, weights_OCS: FloatArray) -> FloatArray:
    """Return the convolution of a Conv node, without bias."""
    kernel = weights_OCS.shape[2:]
    strides, dilations, groups = _strides(node, len(kernel))
    begin, end = _pads(node, values_BCS.shape[2:], kernel, strides, dilations)
    padded = np.pad(values_BCS, [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    sizes = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]
    batch, outputs = len(values_BCS), len(weights_OCS)
    sums = np.zeros((batch, groups, outputs // groups, math.prod(sizes)))
    grouped = weights_OCS.reshape(groups, outputs // groups, *weights_OCS.shape[1:])
    for place in np.ndindex(*kernel):
        where = _slices(place, sizes, strides, dilations)
        seen = padded[(slice(None), slice(None), *where)].reshape(batch, groups, -1, math.prod(sizes))
        sums += grouped[(..., *place)] @ seen
    return sums.reshape(batch, outputs, *sizes)


def transpose_convolve(node: Any, values_BCS: FloatArray, weights_COS: FloatArray) -> FloatArray:
    """Return the transposed convolution of a ConvTranspose node, without bias."""
    kernel, sizes = weights_COS.shape[2:], values_BCS.shape[2:]
    strides, dilations, groups = _strides(node, len(kernel))
    batch, channels = values_BCS.shape[:2]
    extra = attribute(node, "output_padding", [0] * len(kernel))
    full = [s * (n - 1) + d * (k - 1) + 1 for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)]
    outputs = weights_COS.shape[1] * groups
    sums = np.zeros((batch, outputs, *(size + more for size, more in zip(full, extra, strict=True))))
    seen = values_BCS.reshape(batch, groups, channels // groups, -1)
    grouped = weights_COS.reshape(groups, channels // groups, *weights_COS.shape[1:])
    for place in np.ndindex(*kernel):
        part = np.swapaxes(grouped[(..., *place)], 1, 2) @ seen
        sums[(slice(None), slice(None), *_slices(place, sizes, strides, dilations))] += part.reshape(
            batch, outputs, *sizes
        )
    begin, end = _transposed_pads(node, sums.shape[2:], [s * n for s, n in zip(strides, sizes, strict=True)])
    cut = [slice(b, size - e) for b, e, size in zip(begin, end, sums.shape[2:], strict=True)]
    return sums[(slice(None), slice(None), *cut)]


def _strides(node: Any, axes: int) -> tuple[list[int], list[int], int]:
    ones = [1] * axes
    return (
        list(attribute(node, "strides", ones)),
        list(attribute(node, "dilations", ones)),
        int(attribute(node, "group", 1)),
    )


def _pads(
    node: Any, sizes: tuple[int, ...], kernel: tuple[int, ...], strides: list[int], dilations: list[int]
) -> tuple[list[int], list[int]]:
    automatic = attribute(node, "auto_pad", b"NOTSET").decode()
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        pads = list(attribute(node, "pads", [0] * 2 * len(kernel)))
        return pads[: len(kernel)], pads[len(kernel) :]
    total = [
        max(0, (math.ceil(n / s) - 1) * s + d * (k - 1) + 1 - n)
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    less, more = [pad // 2 for pad in total], [pad - pad // 2 for pad in total]
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def _transposed_pads(node: Any, full: tuple[int, ...], stretched: list[int]) -> tuple[list[int], list[int]]:
    """Return what is cut off from the start and the end of a transposed convolution of full size.

    Args:
        stretched: sizes of the input times the strides, which automatic padding gives the output.
    """
    axes, automatic = len(full), attribute(node, "auto_pad", b"NOTSET").decode()
    shape = attribute(node, "output_shape", stretched if automatic.startswith("SAME") else None)
    if shape is None:
        pads = list(attribute(node, "pads", [0] * 2 * axes))
        return pads[:axes], pads[axes:]
    total = [size - wanted for size, wanted in zip(full, shape[-axes:], strict=True)]
    less, more = [pad // 2 for pad in total], [pad - pad // 2 for pad in total]
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def _slices(place: tuple[int, ...], sizes: Any, strides: list[int], dilations: list[int]) -> tuple[slice, ...]:
    return tuple(
        slice(p * d, p * d + s * (n - 1) + 1, s) for p, n, s, d in zip(place, sizes, strides, dilations, strict=True)
    )
