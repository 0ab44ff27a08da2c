"""Epochs of whole cases: every case exactly once per epoch, in another random order in each epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_steps.training.data.batch import Batch, Patch, joined, steps_of_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The cases of each step; the last step of an epoch has the remaining ones.

    The order does not depend on the number of ranks: each rank takes its own part of a step's cases.
    """

    num_cases: int
    batch_size: int
    seed: int

    def cases_of(self, step: int) -> list[int]:
        """Return the numbers of the cases of a step, over all ranks."""
        epoch, place = divmod(step, steps_of_epoch(self.num_cases, self.batch_size))
        order = _order_of_epoch(self.seed, epoch, self.num_cases)
        return [int(case) for case in order[place * self.batch_size : (place + 1) * self.batch_size]]

    def size_of(self, step: int) -> int:
        """Return the number of cases of a step."""
        place = step % steps_of_epoch(self.num_cases, self.batch_size)
        return min(self.batch_size, self.num_cases - place * self.batch_size)

    def batch(self, step: int, patch_of: Callable[[int, int, int], Patch], *, rank: int, world_size: int) -> Batch:
        """Return a rank's cases of a step.

        A rank without a case in this step gets one that has no weight, because it must take part in the exchange of gradients.

        Args:
            patch_of: returns a case, for its number, the step and its place in the step.
        """
        cases = self.cases_of(step)
        patches = [patch_of(cases[place], step, place) for place in range(rank, len(cases), world_size)]
        if patches:
            return joined(patches, num_together=len(cases))
        return joined([patch_of(cases[0], step, rank)], num_together=len(cases), is_padding=True)

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of cases that a rank has trained on in the first steps."""
        return sum(len(range(rank, self.size_of(step), world_size)) for step in range(steps))

    def num_padding(self, steps: int, *, rank: int) -> int:
        """Return the number of the first steps that have no case for a rank, which gets a padding case there."""
        return sum(rank >= self.size_of(step) for step in range(steps))


@functools.lru_cache(maxsize=2)
def _order_of_epoch(seed: int, epoch: int, num_cases: int) -> npt.NDArray[np.int64]:
    """Return the cases of an epoch in their order; drawn once and not in every step, because a table has millions of rows."""
    return np.random.default_rng((seed, epoch)).permutation(num_cases)
