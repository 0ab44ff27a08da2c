"""3D-ResAttNet: a 3-D residual network with self-attention, from volumes to one logit per class.

The paper prints neither channels, strides, the places of the attention nor the number of parameters; those of this module are
medweave's reference. Source: Akintoye, Han, Zhang, Chen and Zhang 2021, "A Hybrid Parallelization Approach for Distributed and
Scalable Deep Learning"; Wang et al. 2018, CVPR, "Non-local neural networks", and Zhang et al. 2019, ICML,
"Self-attention generative adversarial networks", for the form of the attention.
Imports torch: `io.model.network` imports this module when a network is built. Suffix legend: B batch, C channel, D channel of
queries and keys, I J K voxel axes, N and M voxel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

QUERY_SHARE = 8
"""Channels of the features for one channel of queries and keys."""


class ResAttNet(nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """3D-ResAttNet: from volumes [B, C, I, J, K] to logits [B, num_classes].

    With 1 channel, 2 classes, the channels 64 128 256 512 and attention after stage 4, ResAttNet-18 has 33,469,123 parameters and
    ResAttNet-34 has 63,778,755; without attention 33,140,802 and 63,450,434.

    Its children, in order, are the stem, the residual blocks and attentions of each stage, and the head: forward is their
    composition.

    Args:
        layers: residual blocks of each stage: 2 2 2 2 for ResAttNet-18, 3 4 6 3 for ResAttNet-34.
        channels: of each stage. The stem and all stages but the first halve the resolution, as does the pooling after the stem.
        attention_stages: stages, from 1, that end with a self-attention over all their voxels; its memory grows with the square of
            their number.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        layers: Sequence[int],
        channels: Sequence[int],
        attention_stages: Sequence[int] = (4,),
    ) -> None:
        super().__init__()
        before = channels[0]
        parts: OrderedDict[str, nn.Module] = OrderedDict(stem=_stem(in_channels, before))
        for stage, (number, after) in enumerate(zip(layers, channels, strict=True), start=1):
            for block in range(1, number + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                parts[f"stage{stage}_block{block}"] = ResidualBlock(before, after, stride=stride)
                before = after
            if stage in attention_stages:
                parts[f"stage{stage}_attention"] = SelfAttention(after)
        parts["head"] = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(before, num_classes))
        # Direct children and no nn.Sequential around all of them: `training.loop.recompute` would take that for one block.
        for name, part in parts.items():
            self.add_module(name, part)
        for module in self.modules():
            if isinstance(module, nn.Conv3d) and module.bias is None:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, image_BCIJK: Any) -> Any:
        """Return logits [B, num_classes]."""
        features = image_BCIJK
        for part in self.children():
            features = part(features)
        return features

    def partitions(self) -> list[tuple[str, nn.Sequential]]:
        """Return the partitions in order: the network may be cut between any two of them, and forward is their composition.

        They are the stem, each residual block, and the head: 10 for ResAttNet-18, 18 for ResAttNet-34. A self-attention is light,
        and belongs to the partition after it.

        Returns:
            the name of the partition, and a module with its children: parameters are shared and have the names of the network, so
            that the states of all partitions together are the state of the network.
        """
        parts = list(self.named_children())
        ends = [place for place, (_, part) in enumerate(parts, start=1) if not isinstance(part, SelfAttention)]
        starts = [0, *ends[:-1]]
        return [
            (parts[end - 1][0], nn.Sequential(OrderedDict(parts[start:end])))
            for start, end in zip(starts, ends, strict=True)
        ]


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """Two 3x3x3 convolutions with batch norm, added to their input; where the shape changes, to a 1x1x1 projection of it.

    Source: He et al. 2016, CVPR, "Deep residual learning for image recognition".
    """

    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv3d(before, after, 3, stride=stride, padding=1, bias=False), nn.BatchNorm3d(after), nn.ReLU(),
            nn.Conv3d(after, after, 3, padding=1, bias=False), nn.BatchNorm3d(after),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv3d(before, after, 1, stride=stride, bias=False), nn.BatchNorm3d(after))
        self.activation = nn.ReLU()

    def forward(self, image_BCIJK: Any) -> Any:
        """Return the features [B, after, ...]."""
        return self.activation(self.convolutions(image_BCIJK) + self.shortcut(image_BCIJK))


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Self-attention over all voxels: y = gamma softmax(q(x)^T k(x)) v(x) + x, where gamma starts at 0.

    q, k and v are 1x1x1 convolutions with bias; q and k have an eighth of the channels: 328,321 parameters for 512 channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(1, channels // QUERY_SHARE)
        self.query, self.key = nn.Conv3d(channels, inner, 1), nn.Conv3d(channels, inner, 1)
        self.value = nn.Conv3d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, image_BCIJK: Any) -> Any:
        """Return features of the shape of the input."""
        query_BDN, key_BDM, value_BCM = (layer(image_BCIJK).flatten(2) for layer in (self.query, self.key, self.value))
        weights_BNM = torch.softmax(query_BDN.transpose(1, 2) @ key_BDM, dim=-1)
        attended_BCN = value_BCM @ weights_BNM.transpose(1, 2)
        return self.gamma * attended_BCN.reshape(image_BCIJK.shape) + image_BCIJK


def _stem(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(in_channels, channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm3d(channels), nn.ReLU(),
        nn.MaxPool3d(2),
    )  # fmt: skip
