"""The residual 1-D convolutional network of DiagnoseNET for an ECG: from five heartbeats to one logit per class.

Imports torch: `io.model.network` imports this module when a network is built. Suffix legend: B batch, C channel, I sample; a
signal is a volume with J = K = 1.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from medweave_steps.networks.classification import scaled_channels

KERNEL = 16
BLOCKS = 37
BASE_CHANNELS = 64
BLOCKS_PER_WIDTH, BLOCKS_PER_POOLING = 10, 4
"""Every tenth block begins with more channels; every fourth block halves the length."""


class EcgResNet(nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """A pre-activation residual network of 75 convolutions: from signals [B, C, I, 1, 1] to logits [B, num_classes].

    A convolution with batch norm and ReLU, 37 blocks of two convolutions, and a dense layer after the mean over all samples.
    Block b (0 to 36) has 64 (1 + b // 10) channels;
    blocks 3, 7, ... 35 halve the length: 1300 samples become 650, 325, 163, 82, 41, 21, 11, 6 and 3.
    With 1 channel and 4 classes it has 32,476,484 parameters, for width 0.125 (8 channels at first) 511,404.

    The convolutions are 2-D, [B, C, 1, I] with kernels of 1 x 16: runtimes and quantizers support them better than 1-D ones, and
    on a CPU they are faster than kernels of 16 x 1.

    Args:
        width: multiplier of the channels of all layers.
        dropout: rate before every convolution of a block, in training.
    Source: García Henao et al. 2020, ICITCS, "DiagnoseNET", which leaves the numbers of channels open; they follow Rajpurkar et al.
        2017, arXiv:1707.01836, "Cardiologist-level arrhythmia detection with convolutional neural networks".
    """

    def __init__(self, *, in_channels: int, num_classes: int, width: float = 1.0, dropout: float = 0.2) -> None:
        super().__init__()
        steps = range(1 + (BLOCKS - 1) // BLOCKS_PER_WIDTH)
        widths = scaled_channels([BASE_CHANNELS * (1 + step) for step in steps], width)
        self.stem = nn.Sequential(*_convolution(in_channels, widths[0], stride=1), nn.BatchNorm2d(widths[0]), nn.ReLU())
        blocks = []
        channels = widths[0]
        for place in range(BLOCKS):
            out = widths[place // BLOCKS_PER_WIDTH]
            stride = 2 if place % BLOCKS_PER_POOLING == BLOCKS_PER_POOLING - 1 else 1
            blocks.append(_Block(channels, out, stride=stride, dropout=dropout))
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, signal_BCIJK: Any) -> Any:
        """Return logits [B, num_classes]."""
        return self.head(self.blocks(self.stem(_row_of(signal_BCIJK))))

    def partitions(self) -> list[tuple[str, nn.Module]]:
        """Return the partitions in order: the first convolution, each block, and the head; see `networks.partitions`."""
        first = nn.Sequential()
        first.add_module("row", _Row())
        first.add_module("stem", self.stem)
        return [
            ("stem", first),
            *((f"blocks.{name}", block) for name, block in self.blocks.named_children()),
            ("head", self.head),
        ]


class _Block(nn.Module):  # type: ignore[misc]
    """Twice batch norm, ReLU, dropout and convolution; and a shortcut without parameters: max pooling, zeros as new channels."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_activation(in_channels, dropout), *_convolution(in_channels, out_channels, stride=stride),
            *_activation(out_channels, dropout), *_convolution(out_channels, out_channels, stride=1),
        )  # fmt: skip
        self.pool = nn.MaxPool2d((1, stride), ceil_mode=True) if stride > 1 else nn.Identity()
        self.new_channels = out_channels - in_channels

    def forward(self, features_BCJI: Any) -> Any:
        """Return features of the output's channels and length."""
        shortcut = self.pool(features_BCJI)
        if self.new_channels:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels))
        return self.layers(features_BCJI) + shortcut


class _Row(nn.Module):  # type: ignore[misc]
    """Puts the samples of a signal on the last axis."""

    def forward(self, signal_BCIJK: Any) -> Any:
        """Return [B, C, 1, I]."""
        return _row_of(signal_BCIJK)


def _row_of(signal_BCIJK: Any) -> Any:
    return signal_BCIJK.squeeze(-1).transpose(2, 3)


def _activation(channels: int, dropout: float) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(), nn.Dropout(dropout)]


def _convolution(in_channels: int, out_channels: int, *, stride: int) -> list[nn.Module]:
    """Return a convolution over I with zeros around the signal: a length n becomes n / stride, rounded up."""
    before = (KERNEL - 1) // 2
    padding = nn.ZeroPad2d((before, KERNEL - 1 - before, 0, 0))
    return [padding, nn.Conv2d(in_channels, out_channels, (1, KERNEL), stride=(1, stride))]
