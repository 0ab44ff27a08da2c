"""The partitions of networks with skips: consecutive modules between which a network may be cut.

A network that can be cut has a method `partitions()`. It returns names and modules in order; forward is their composition. A module
takes the output of the module before, a tuple as several arguments. A U-Net passes on a stack of tensors: the skips that are still
needed, and the features at the end. Partitions share the parameters of the network.
Imports torch. Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

Modules = Sequence[tuple[str, nn.Module]]
"""Names and modules, in the order in which they run."""

_MONAI_UNET = "monai.networks.nets.unet"


class First(nn.Module):  # type: ignore[misc]  # torch is not imported for types
    """The first block of an encoder: from the image to the stack of its features."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, image_BCIJK: Any) -> tuple[Any, ...]:
        """Return the features."""
        return (self.block(image_BCIJK),)


class Down(nn.Module):  # type: ignore[misc]
    """A further block of an encoder: its features are added to the stack; the features before become a skip."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *stack: Any) -> tuple[Any, ...]:
        """Return the stack with the new features at its end."""
        return (*stack, self.block(stack[-1]))


class Up(nn.Module):  # type: ignore[misc]
    """A block of a decoder: the last skip and the features of the stack are replaced by new features.

    Args:
        block: takes the features, upsampled, and the skip, joined along the channels.
        up: upsamples the features; None where the block does it. Without it the skip comes first, as in MONAI's U-Net.
    """

    def __init__(self, block: nn.Module, up: nn.Module | None = None) -> None:
        super().__init__()
        self.block, self.up = block, up

    def forward(self, *stack: Any) -> tuple[Any, ...]:
        """Return the shorter stack."""
        *skips, skip, features = stack
        joined = [skip, features] if self.up is None else [self.up(features), skip]
        return (*skips, self.block(torch.cat(joined, dim=1)))


class Last(nn.Module):  # type: ignore[misc]
    """The last block of a network: returns the only tensor of the stack itself."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *stack: Any) -> Any:
        """Return logits [B, outputs, I, J, K]."""
        return self.block(*stack)[0]


def declared_partitions(network: nn.Module) -> Modules | None:
    """Return the partitions that a network declares by its method `partitions()`, or those of MONAI's U-Net; None without any."""
    if type(network).__module__ == _MONAI_UNET:
        return _unet_partitions(network)
    method = getattr(network, "partitions", None)
    return None if method is None else list(method())


def _unet_partitions(network: nn.Module) -> Modules:
    """Return the blocks of MONAI's U-Net, whose levels are nested: a block, a skip around the lower levels, a block."""
    encoder: list[tuple[str, nn.Module]] = []
    decoder: list[tuple[str, nn.Module]] = []
    name, level = "model", network.model
    while type(level) is nn.Sequential and len(level) == 3 and hasattr(level[1], "submodule"):
        encoder.append((f"{name}.0", Down(level[0]) if encoder else First(level[0])))
        decoder.insert(0, (f"{name}.2", Up(level[2])))
        name, level = f"{name}.1.submodule", level[1].submodule
    last_name, last = decoder.pop()
    return [*encoder, (name, Down(level)), *decoder, (last_name, Last(last))]
