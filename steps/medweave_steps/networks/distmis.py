"""The 3-D U-Net of DistMIS, as its text describes it and as its published number of parameters proves it to be.

Source: Berral, Aranda, Domínguez and Torres 2022, "Distributing Deep Learning Hyperparameter Tuning for 3D Medical Image
Segmentation", section III. The two differ: 406,793 parameters come about only with 3x3x3 kernels in the transposed and in the last
convolution and with a normalization along the last spatial axis, for which a framework's default axis was taken.
Imports torch: `io.network` imports this module when a network is built. Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import torch
from torch.nn import (
    BatchNorm3d,
    Conv3d,
    ConvTranspose3d,
    GroupNorm,
    InstanceNorm3d,
    MaxPool3d,
    ModuleList,
    ReLU,
    Sequential,
)

from medweave_steps.networks import FILTERS, GROUPS, POOLINGS
from medweave_steps.networks.partitions import Down, First, Modules, Up

PUBLISHED_DEPTH, PUBLISHED_PARAMETERS = 152, 406_793
EPSILON = 1e-3
INITIAL_DEVIATION = 0.05

Variant = Literal["as_described", "as_published"]
Norm = Literal["batch", "group", "instance"]


class DistMisUnet(torch.nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """Four resolutions of two convolutions each, three poolings, skips that are concatenated; one logit per voxel.

    Args:
        variant: as_described has transposed convolutions of 2x2x2, a last one of 1x1x1 and normalises channels; as_published has
            3x3x3 in both and normalises along the depth (K), so it takes images of one depth only.
        in_channels: 4 in the paper, one per MR contrast.
        norm: batch or group in the paper.
        depth: voxels along K, a multiple of 8; for as_published only.
    Raises:
        ValueError: the depth does not fit.
    """

    def __init__(
        self, *, variant: Variant = "as_described", in_channels: int = 4, norm: Norm = "batch", depth: int | None = None
    ) -> None:
        super().__init__()
        _check_depth(variant, norm, depth)
        self.variant, self.norm, self.depth = variant, norm, depth
        wide = variant == "as_published"
        self.encoder = ModuleList(
            self._block(before, after, level)
            for level, (before, after) in enumerate(itertools.pairwise((in_channels, *FILTERS)))
        )
        levels = range(POOLINGS - 1, -1, -1)
        self.up = ModuleList(_doubled(FILTERS[level + 1], FILTERS[level], wide=wide) for level in levels)
        self.decoder = ModuleList(self._block(2 * FILTERS[level], FILTERS[level], level) for level in levels)
        self.last = Conv3d(FILTERS[0], 1, 3, padding=1) if wide else Conv3d(FILTERS[0], 1, 1)
        for layer in self.modules():
            if isinstance(layer, Conv3d | ConvTranspose3d):
                torch.nn.init.trunc_normal_(layer.weight, std=INITIAL_DEVIATION)
                torch.nn.init.zeros_(layer.bias)
        if wide and norm == "batch" and in_channels == 4 and depth == PUBLISHED_DEPTH:
            assert num_parameters(self) == PUBLISHED_PARAMETERS, "the network differs from the published one"

    def forward(self, image_BCIJK: Any) -> Any:
        """Return the logits [B, 1, I, J, K] of images whose sides are multiples of 8."""
        features, skips = image_BCIJK, []
        for level, block in enumerate(self.encoder):
            features = block(torch.nn.functional.max_pool3d(features, 2) if level else features)
            skips.append(features)
        for up, block, skip in zip(self.up, self.decoder, reversed(skips[:-1]), strict=True):
            features = block(torch.cat([up(features), skip], dim=1))
        return self.last(features)

    def partitions(self) -> Modules:
        """Return the blocks of encoder and decoder and the last convolution, as `networks.partitions` describes them."""
        first, *further = self.encoder
        decoder = zip(self.up, self.decoder, strict=True)
        return [
            ("encoder.0", First(first)),
            *(
                (f"encoder.{level}", Down(Sequential(MaxPool3d(2), block)))
                for level, block in enumerate(further, start=1)
            ),
            *((f"decoder.{place}", Up(block, up)) for place, (up, block) in enumerate(decoder)),
            ("last", self.last),
        ]

    def _block(self, before: int, after: int, level: int) -> Sequential:
        layers = []
        for channels in (before, after):
            layers += [Conv3d(channels, after, 3, padding=1), self._normalised(after, level), ReLU()]
        return Sequential(*layers)

    def _normalised(self, channels: int, level: int) -> Any:
        along_depth = self.variant == "as_published"
        number = self.depth // 2**level if along_depth and self.depth else channels
        if self.norm == "batch":
            layer: Any = BatchNorm3d(number, eps=EPSILON)
        elif self.norm == "group":
            layer = GroupNorm(GROUPS[self.variant], number, eps=EPSILON)
        else:
            layer = InstanceNorm3d(number, eps=EPSILON, affine=True)
        return AlongDepth(layer) if along_depth else layer


class AlongDepth(torch.nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """A normalization whose channels are the voxels along the last axis."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, image_BCIJK: Any) -> Any:
        """Return the image, normalized."""
        return self.layer(image_BCIJK.transpose(1, 4)).transpose(1, 4)


def num_parameters(network: Any) -> int:
    """Return weights and running statistics, as the paper's framework counts them."""
    statistics = (tensor for name, tensor in network.named_buffers() if name.endswith(("running_mean", "running_var")))
    return sum(tensor.numel() for tensor in itertools.chain(network.parameters(), statistics))


def _doubled(before: int, after: int, *, wide: bool) -> ConvTranspose3d:
    if wide:
        return ConvTranspose3d(before, after, 3, stride=2, padding=1, output_padding=1)
    return ConvTranspose3d(before, after, 2, stride=2)


def _check_depth(variant: Variant, norm: Norm, depth: int | None) -> None:
    if variant == "as_described":
        if depth is not None:
            raise ValueError("as_described takes no depth: it accepts images of any size")
        return
    multiple = 2**POOLINGS * (GROUPS[variant] if norm == "group" else 1)
    if depth is None or depth < multiple or depth % multiple:
        raise ValueError(f"as_published with {norm} normalization needs a depth that is a multiple of {multiple}")
