"""Strategies: how one training is spread over processes. The model does not know which one runs it.

The registry maps a name to the module and class, imported only when asked for. A strategy wraps the network from outside, so that
its backward pass gives every rank the same gradients. The sampler deals every rank its share of one global batch, so that each of
them trains on the same patches whatever their number.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from medweave_steps.training.group import Group

STRATEGIES = {
    "single": "medweave_steps.train.strategies.single:SingleStrategy",
    "ddp": "medweave_steps.train.strategies.ddp:DdpStrategy",
}


class Strategy(Protocol):
    """What the training loop asks of a strategy.

    Attributes:
        group: the ranks.
        device: torch.device that this process computes on.
    """

    group: Group
    device: Any

    def wrap(self, network: Any) -> Any:
        """Puts the network on the device and makes its backward pass average gradients; returns what to call."""


def open_strategy(name: str, *, group: Group, device: Any) -> Strategy:
    """Makes the strategy of this name for one rank."""
    module, _, class_name = STRATEGIES[name].partition(":")
    strategy: Strategy = getattr(importlib.import_module(module), class_name)(group=group, device=device)
    return strategy
