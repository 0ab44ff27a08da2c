"""One process, one device: the case world_size = 1 of every other strategy."""

from __future__ import annotations

from typing import Any

from medweave_steps.training.group import Group


class SingleStrategy:
    """Trains in this process alone."""

    def __init__(self, *, group: Group, device: Any) -> None:
        assert group.world_size == 1
        self.group, self.device = group, device

    def wrap(self, network: Any) -> Any:
        """Moves the network to the device."""
        return network.to(self.device)
