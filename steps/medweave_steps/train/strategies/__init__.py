"""Strategies: how one training is spread over processes. The model does not know which one runs it.

The registry maps a name to the module and class, imported only when asked for. A strategy is made by `open_strategy`, wraps
the network from outside, averages figures over the ranks, and is closed at the end. The sampler deals every rank its share of one
global batch, so that each of them trains on the same patches whatever their number.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, Protocol

STRATEGIES = {"single": "medweave_steps.train.strategies.single:SingleStrategy"}


class Strategy(Protocol):
    """What the training loop asks of a strategy.

    Attributes:
        rank: place of this process among all, from 0.
        world_size: number of processes.
        device: torch.device that this process computes on.
    """

    rank: int
    world_size: int
    device: Any

    def wrap(self, network: Any) -> Any:
        """Puts the network on the device and makes its backward pass synchronise gradients; returns what to call."""

    def close(self) -> None:
        """Releases what the strategy holds."""


def open_strategy(name: str, *, device: Literal["auto", "cpu", "cuda"]) -> Strategy:
    """Makes the strategy of this name.

    Raises:
        UsageError: the device asked for is not there.
    """
    module, _, class_name = STRATEGIES[name].partition(":")
    strategy: Strategy = getattr(importlib.import_module(module), class_name)(device=device)
    return strategy
