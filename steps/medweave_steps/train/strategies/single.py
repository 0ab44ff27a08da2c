"""One process, one device: the case world_size = 1 of every other strategy."""

from __future__ import annotations

from medweave_steps.train.strategies import Strategy


class SingleStrategy(Strategy):
    """Trains in this process alone."""

    uses_ranks = False


STRATEGY = SingleStrategy
