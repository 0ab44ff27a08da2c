"""Chunks of an epoch: a rank trains on as many whole cases as fit into its memory, one chunk after the other."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medweave_steps.training.loop.stepper import Stepper

Weights = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The position of a step in the chunks of an epoch.

    Attributes:
        number: of the step's chunk, from 0.
        num_chunks: of the epoch, the same on every rank.
        is_over: the step is the last one of its chunk.
    """

    number: int
    num_chunks: int
    is_over: bool


def chunk_of(place: int, *, num_steps: int, most_steps: int) -> Chunk:
    """Return the chunk of a step of an epoch.

    A chunk is a range of steps, because no step is divided. An epoch has as few chunks as possible, and their lengths differ by one
    step at most. With one case per step for each of N ranks, D cases, and M cases that fit into memory, there are
    N * ceil(ceil(D / N) / M) chunks over all ranks.

    Args:
        place: of the step in its epoch, from 0.
        num_steps: of an epoch.
        most_steps: of a chunk, >= 1.
    """
    number = -(-num_steps // most_steps)
    starts = [num_steps * chunk // number for chunk in range(number + 1)]
    current = bisect.bisect_right(starts, place) - 1
    return Chunk(current, number, place + 1 == starts[current + 1])


@dataclass(slots=True, kw_only=True)
class ChunkProgress:
    """The progress of a rank in the chunks of an epoch.

    Attributes:
        start: weights that every chunk of the epoch starts from; empty between two epochs.
        is_begun: the network holds the weights of a chunk that is not over.
        num_cases: that the current chunk was trained on so far.
        finished: weights and number of cases of each finished chunk.
        moments: optimizer moments of each chunk, with which it continues in the next epoch.
    """

    start: Weights = field(default_factory=dict)
    is_begun: bool = False
    num_cases: int = 0
    finished: list[tuple[Weights, int]] = field(default_factory=list)
    moments: dict[int, Any] = field(default_factory=dict)

    def begin(self, stepper: Stepper, chunk: Chunk) -> None:
        """Load the weights of the epoch's start and the optimizer moments of this chunk."""
        if not self.start:
            self.start = weights_of(stepper)
        stepper.network.load_state_dict(self.start)
        stepper.set_moments(self.moments.get(chunk.number, {}))
        self.is_begun, self.num_cases = True, 0

    def end(self, stepper: Stepper, chunk: Chunk) -> None:
        """Store the weights and the optimizer moments of a chunk that is over."""
        self.finished.append((weights_of(stepper), self.num_cases))
        self.moments[chunk.number] = stepper.moments()
        self.is_begun = False

    def all(self, stepper: Stepper) -> list[tuple[Weights, int]]:
        """Return weights and number of cases of the epoch's chunks so far, in order; the current one is the last."""
        return [*self.finished, *([(weights_of(stepper), self.num_cases)] if self.is_begun else [])]

    def restore(self, stepper: Stepper, saved: dict[str, Any]) -> None:
        """Restore the progress from a checkpoint; the network gets the weights of the chunk that was not over."""
        self.start, self.is_begun, self.moments = saved["start"], saved["is_begun"], saved["moments"]
        self.finished = [(weights, number) for weights, number in saved["weights"]]
        if self.is_begun:
            weights, self.num_cases = self.finished.pop()
            stepper.network.load_state_dict(weights)


def weights_of(stepper: Stepper) -> Weights:
    """Return a copy of the network's weights and running statistics on the CPU; the next step does not change it."""
    return {name: tensor.detach().cpu().clone() for name, tensor in stepper.network.state_dict().items()}
