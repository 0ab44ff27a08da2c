"""The residual-encoder U-Net of nnU-Net: residual blocks on the way down, one convolution per stage on the way up.

Source: Isensee et al. 2024, MICCAI, "nnU-Net Revisited" (ResEnc); Isensee et al. 2021, Nat Methods 18:203, for instance norm, leaky
ReLU and deep supervision; He et al. 2019, CVPR, "Bag of Tricks", for the block (ResNet-D: the shortcut pools before its 1x1x1
convolution). A test compares the number of weights with the published implementation's.

MONAI has no such network: DynUNet has one residual block per stage; SegResNetDS doubles the channels of every stage without limit
and chooses the strides of an axis itself.
Imports torch: `io.network` imports this module when a network is built. Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import AvgPool3d, Conv3d, ConvTranspose3d, InstanceNorm3d, LeakyReLU, ModuleList, Sequential

from medweave_steps.networks.partitions import Down, First, Modules

Axes = Sequence[int]
SLOPE = 0.01
"""Slope of the leaky ReLU below zero, and the one that weights are initialized for."""


class ResEncUnet(torch.nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """A U-Net from images [B, C, I, J, K] to logits.

    In training mode, a list of logits: of full resolution first, then of each lower one but the lowest of the decoder, whose loss
    nnU-Net weights with zero. In evaluation mode, the logits of full resolution only.

    Args:
        channels: of each stage, from full resolution down.
        strides: I J K of the first convolution of each stage; those of the first stage are 1.
        kernels: I J K of the convolutions of each stage, odd.
        blocks: residual blocks of each stage.
        deep_supervision: False leaves out the logits of lower resolutions.
    Raises:
        ValueError: the lists differ in length, or a kernel is even.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        out_channels: int,
        channels: Sequence[int],
        strides: Sequence[Axes],
        kernels: Sequence[Axes],
        blocks: Sequence[int],
        deep_supervision: bool = True,
    ) -> None:
        super().__init__()
        if not len(channels) == len(strides) == len(kernels) == len(blocks) >= 2 or min(blocks) < 1:
            raise ValueError("channels, strides, kernels and blocks need one entry for each of at least two stages")
        if not all(side % 2 for kernel in kernels for side in kernel):
            raise ValueError("the sides of a kernel must be odd")
        self.multiples = [math.prod(axis) for axis in zip(*strides, strict=True)]
        self.stem = _convolution(in_channels, channels[0], kernels[0], (1, 1, 1))
        self.encoder = ModuleList(
            Sequential(
                ResidualBlock(before, after, kernel, stride),
                *(ResidualBlock(after, after, kernel, (1, 1, 1)) for _ in range(number - 1)),
            )
            for (before, after), kernel, stride, number in zip(
                itertools.pairwise((channels[0], *channels)), kernels, strides, blocks, strict=True
            )
        )
        stages = range(len(channels) - 2, -1, -1)
        self.up = ModuleList(
            ConvTranspose3d(channels[stage + 1], channels[stage], _axes(strides[stage + 1]), _axes(strides[stage + 1]))
            for stage in stages
        )
        self.decoder = ModuleList(
            _convolution(2 * channels[stage], channels[stage], kernels[stage], (1, 1, 1)) for stage in stages
        )
        num_outputs = max(1, len(channels) - 2) if deep_supervision else 1
        self.heads = ModuleList(Conv3d(channels[stage], out_channels, 1) for stage in range(num_outputs))
        _initialize(self)

    def forward(self, image_BCIJK: Any) -> Any:
        """Return logits, in training mode with deep supervision a list of them.

        Raises:
            ValueError: a side of the image is no multiple of the product of its axis' strides.
        """
        sides = list(zip(image_BCIJK.shape[2:], self.multiples, strict=True))
        if any(side % multiple for side, multiple in sides):
            raise ValueError(f"the sides of an image must be multiples of {self.multiples}")
        current, skips = self.stem(image_BCIJK), []
        for stage in self.encoder:
            current = stage(current)
            skips.append(current)
        skips.pop()
        logits, num_outputs = [], len(self.heads) if self.training else 1
        for up, convolution in zip(self.up, self.decoder, strict=True):
            current = convolution(torch.cat([up(current), skips.pop()], 1))
            if len(skips) < num_outputs:
                logits.append(self.heads[len(skips)](current))
        return logits[::-1] if len(logits) > 1 else logits[0]

    def partitions(self) -> Modules:
        """Return the stages of encoder and decoder, as `networks.partitions` describes them.

        In training mode with deep supervision, the stack ends with the logits of the lower resolutions.
        """
        first, *further = self.encoder
        levels = range(len(self.decoder) - 1, -1, -1)
        heads = [self.heads[level] if level < len(self.heads) else None for level in levels]
        decoder = zip(levels, self.up, self.decoder, heads, strict=True)
        return [
            ("encoder.0", First(Sequential(self.stem, first))),
            *((f"encoder.{level}", Down(block)) for level, block in enumerate(further, start=1)),
            *((f"decoder.{place}", _DecoderStage(*parts)) for place, parts in enumerate(decoder)),
        ]


class _DecoderStage(torch.nn.Module):  # type: ignore[misc]
    """A stage of the decoder: from skips, features and the logits of lower resolutions to those of the next stage.

    Args:
        level: of its resolution, 0 for the full one; the skips of so many further levels follow.
        head: gives the logits of this resolution, None where it has none.
    """

    def __init__(self, level: int, up: Any, convolution: Any, head: Any) -> None:
        super().__init__()
        self.level, self.up, self.convolution, self.head = level, up, convolution, head

    def forward(self, *stack: Any) -> Any:
        """Return the shorter stack; at full resolution what the network returns."""
        skips, skip, features, logits = (
            stack[: self.level],
            *stack[self.level : self.level + 2],
            stack[self.level + 2 :],
        )
        features = self.convolution(torch.cat([self.up(features), skip], 1))
        # The mode of a module of the network: this one is not part of it.
        if self.head is not None and (self.convolution.training or self.level == 0):
            logits = (*logits, self.head(features))
        if self.level:
            return (*skips, features, *logits)
        return list(logits[::-1]) if len(logits) > 1 else logits[0]


class ResidualBlock(torch.nn.Module):  # type: ignore[misc]
    """Two convolutions, each with instance norm, and a shortcut; leaky ReLU after the first one and after the sum."""

    def __init__(self, before: int, after: int, kernel: Axes, stride: Axes) -> None:
        super().__init__()
        self.first = _convolution(before, after, kernel, stride)
        self.second = _convolution(after, after, kernel, (1, 1, 1))[:2]  # without its ReLU
        pool = [AvgPool3d(_axes(stride), _axes(stride))] if max(stride) > 1 else []
        project = [Conv3d(before, after, 1, bias=False), _norm(after)] if before != after else []
        self.shortcut = Sequential(*pool, *project)
        self.activation = LeakyReLU(SLOPE, inplace=True)

    def forward(self, image_BCIJK: Any) -> Any:
        """Return the block's features."""
        return self.activation(self.second(self.first(image_BCIJK)) + self.shortcut(image_BCIJK))


def _convolution(before: int, after: int, kernel: Axes, stride: Axes) -> Any:
    padding = tuple(side // 2 for side in kernel)
    convolution = Conv3d(before, after, _axes(kernel), stride=_axes(stride), padding=padding)
    return Sequential(convolution, _norm(after), LeakyReLU(SLOPE, inplace=True))


def _norm(channels: int) -> Any:
    return InstanceNorm3d(channels, affine=True)


def _axes(values: Axes) -> tuple[int, ...]:
    return tuple(values)


def _initialize(network: Any) -> None:
    """Draw the weights for leaky ReLU; the last norm of each block starts at zero, so that a block starts as its shortcut.

    Source: He et al. 2015, ICCV, "Delving deep into rectifiers"; Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 5.1.
    """
    for module in network.modules():
        if isinstance(module, Conv3d | ConvTranspose3d):
            torch.nn.init.kaiming_normal_(module.weight, a=SLOPE)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
    for module in network.modules():
        if isinstance(module, ResidualBlock):
            torch.nn.init.zeros_(module.second[1].weight)
