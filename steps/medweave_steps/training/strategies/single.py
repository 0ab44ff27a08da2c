"""One process, one device: every other strategy with world_size = 1."""

from __future__ import annotations

from medweave_steps.training.strategies import Strategy


class SingleStrategy(Strategy):
    """A strategy that trains in this process alone."""

    uses_ranks = False


STRATEGY = SingleStrategy
