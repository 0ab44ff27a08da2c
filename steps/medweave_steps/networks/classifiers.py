"""VGG16 and MobileNet v1: torch modules from images or volumes to one logit per class.

Imports torch: `io.model.network` imports this module when a network is built. Suffix legend: B batch, C channel, I J K voxel axes;
a 2-D image is a volume of one slice, K = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from medweave_steps.networks.classification import scaled_channels

VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage; a max pooling by 2 ends it. Simonyan and Zisserman 2015, configuration D."""
VGG_DENSE = 4096
MOBILENET_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
"""Channels and stride of each depthwise separable convolution, after a first convolution with 32 channels and stride 2."""


class Vgg16(nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """VGG16, configuration D: from images [B, C, I, J, 1] to logits [B, num_classes].

    With 3 channels, 8 classes and images of 224 x 224 pixels it has 134,293,320 parameters: 134,280,896 weights and 12,424 biases.

    Args:
        image_shape: I, J in pixels, each at least 32; the first dense layer depends on it.
        width: multiplier of the channels of all layers but the last.
        dropout: rate before the last two dense layers, in training.
    Raises:
        ValueError: the image is smaller than 32 pixels.
    Source: Simonyan and Zisserman 2015, ICLR, "Very deep convolutional networks for large-scale image recognition"; He et al. 2015,
        ICCV, "Delving deep into rectifiers", for the initial weights.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        image_shape: Sequence[int],
        width: float = 1.0,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        rows, columns = (side // 2 ** len(VGG_STAGES) for side in image_shape)
        if min(rows, columns) < 1:
            raise ValueError(f"image_shape {list(image_shape)}: each side must be at least {2 ** len(VGG_STAGES)}")
        layers: list[Any] = []
        channels = in_channels
        for full, number in VGG_STAGES:
            (out,) = scaled_channels((full,), width)
            for _ in range(number):
                layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
                channels = out
            layers.append(nn.MaxPool2d(2))
        (dense,) = scaled_channels((VGG_DENSE,), width)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * rows * columns, dense), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(dense, dense), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(dense, num_classes),
        )  # fmt: skip
        # Without normalization, 16 layers learn only if every layer keeps the variance of its input.
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.classifier[-1].weight, std=0.01)

    def forward(self, image_BCIJK: Any) -> Any:
        """Return logits [B, num_classes]."""
        return self.classifier(torch.flatten(self.features(image_BCIJK.squeeze(-1)), 1))


class MobileNet(nn.Module):  # type: ignore[misc]
    """MobileNet v1: from images [B, C, I, J, 1] or volumes [B, C, I, J, K] to logits [B, num_classes].

    With 3 channels and 1000 classes in 2-D, it has 4,231,976 parameters for width 1, 1,331,592 for 0.5 and 470,072 for 0.25. In 3-D
    every kernel has one more axis.

    Args:
        spatial_dims: 2 for images, 3 for volumes.
        width: multiplier of the channels of all layers.
    Source: Howard et al. 2017, arXiv:1704.04861, "MobileNets", table 1.
    """

    def __init__(self, *, spatial_dims: int, in_channels: int, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        self.is_flat = spatial_dims == 2
        channels, *outs = scaled_channels((32, *(out for out, _ in MOBILENET_BLOCKS)), width)
        layers = _normalized(spatial_dims, in_channels, channels, kernel=3, stride=2)
        for out, (_, stride) in zip(outs, MOBILENET_BLOCKS, strict=True):
            layers += _normalized(spatial_dims, channels, channels, kernel=3, stride=stride, groups=channels)
            layers += _normalized(spatial_dims, channels, out, kernel=1)
            channels = out
        pool = nn.AdaptiveAvgPool2d if self.is_flat else nn.AdaptiveAvgPool3d
        self.features = nn.Sequential(*layers, pool(1))
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, image_BCIJK: Any) -> Any:
        """Return logits [B, num_classes]."""
        image = image_BCIJK.squeeze(-1) if self.is_flat else image_BCIJK
        return self.classifier(torch.flatten(self.features(image), 1))


def _normalized(
    spatial_dims: int, in_channels: int, out_channels: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> list[Any]:
    """Return a convolution without bias, batch norm and ReLU."""
    convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if spatial_dims == 2 else (nn.Conv3d, nn.BatchNorm3d)
    options = {"stride": stride, "padding": kernel // 2, "groups": groups, "bias": False}
    return [convolution(in_channels, out_channels, kernel, **options), norm(out_channels), nn.ReLU()]
