"""MONAI's ResNet and DenseNet as networks from images [B, C, I, J, 1] or volumes [B, C, I, J, K] to logits [B, num_classes].

The names of their weights are MONAI's, so that weights of a MONAI Bundle fit. Imports torch and MONAI: `io.model.network` imports
this module when a network is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monai.networks import nets


class ResNet(nets.ResNet):  # type: ignore[misc]  # MONAI is not imported for types
    """A residual network; with 2-D images of 3 channels and 1000 classes, ResNet-18 has 11,689,512 parameters.

    Args:
        spatial_dims: 2 for images, 3 for volumes.
        block: `basic` (18 and 34 layers) or `bottleneck` (50 layers and more).
        layers: blocks of each of the four stages.
        channels: of each stage.
    Source: He et al. 2016, CVPR, "Deep residual learning for image recognition".
    """

    def __init__(
        self,
        *,
        spatial_dims: int,
        in_channels: int,
        num_classes: int,
        block: str,
        layers: Sequence[int],
        channels: Sequence[int],
    ) -> None:
        super().__init__(
            block=block,
            layers=list(layers),
            block_inplanes=list(channels),
            spatial_dims=spatial_dims,
            n_input_channels=in_channels,
            num_classes=num_classes,
            conv1_t_stride=2,  # with no bias in the shortcuts: the network of the paper
            bias_downsample=False,
        )
        self.is_flat = spatial_dims == 2

    def forward(self, image_BCIJK: Any) -> Any:
        """Return logits [B, num_classes]."""
        return super().forward(image_BCIJK.squeeze(-1) if self.is_flat else image_BCIJK)


class DenseNet(nets.DenseNet):  # type: ignore[misc]
    """A densely connected network; with 2-D images of 3 channels and 1000 classes, DenseNet-121 has 7,978,856 parameters.

    Args:
        spatial_dims: 2 for images, 3 for volumes.
        init_features: channels of the first convolution.
        growth_rate: channels that each layer adds.
        blocks: layers of each dense block.
    Source: Huang et al. 2017, CVPR, "Densely connected convolutional networks".
    """

    def __init__(
        self,
        *,
        spatial_dims: int,
        in_channels: int,
        num_classes: int,
        init_features: int,
        growth_rate: int,
        blocks: Sequence[int],
    ) -> None:
        super().__init__(
            spatial_dims=spatial_dims,
            in_channels=in_channels,
            out_channels=num_classes,
            init_features=init_features,
            growth_rate=growth_rate,
            block_config=list(blocks),
        )
        self.is_flat = spatial_dims == 2

    def forward(self, image_BCIJK: Any) -> Any:
        """Return logits [B, num_classes]."""
        return super().forward(image_BCIJK.squeeze(-1) if self.is_flat else image_BCIJK)
