"""Chunks of an epoch: as many whole cases of a rank as fit into its memory, one chunk after the other."""

from __future__ import annotations

import bisect
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple

FloatArray = npt.NDArray[np.float32]
Sample = tuple[FloatArray, FloatArray]
"""Image [channel, I, J, K] and label [I, J, K] of a case, before anything random is done to them."""
MIB = 2**20


def sample_bytes(patch_shape: Triple, num_channels: int) -> int:
    """What a case takes in memory, in float32: its channels and its label, filled up to a patch."""
    return 4 * (num_channels + 1) * math.prod(patch_shape)


def cases_that_fit(chunk_mib: int, patch_shape: Triple, num_channels: int) -> int:
    """Cases of a chunk, at most."""
    return chunk_mib * MIB // sample_bytes(patch_shape, num_channels)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where in the chunks of an epoch a step is.

    Attributes:
        number: of its chunk, from 0.
        num_chunks: of the epoch, the same on every rank.
        is_over: it is the last step of its chunk.
    """

    number: int
    num_chunks: int
    is_over: bool


def chunk_of(place: int, *, num_steps: int, most_steps: int) -> Chunk:
    """The chunk of a step of an epoch.

    A chunk is a stretch of steps, as no step is cut; the stretches of an epoch are as few as possible and differ by one step at
    most. With one case a step for each of N ranks, D cases, and M that fit, they are N * ceil(ceil(D / N) / M) over all ranks.

    Args:
        place: of the step in its epoch, from 0.
        num_steps: of an epoch.
        most_steps: of a chunk, >= 1.
    """
    number = -(-num_steps // most_steps)
    starts = [num_steps * chunk // number for chunk in range(number + 1)]
    found = bisect.bisect_right(starts, place) - 1
    return Chunk(found, number, place + 1 == starts[found + 1])


class KeptSamples:
    """The cases of a chunk in memory, never more than fit: those longest unused go first, before another one is read.

    Attributes:
        limit_bytes: of all that are kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept: OrderedDict[int, Sample] = OrderedDict()

    def get(self, case: int, num_bytes: int, read: Callable[[], Sample]) -> Sample:
        """What is kept of a case, or else read now; nobody changes it.

        Args:
            num_bytes: that every case takes.
        """
        if case not in self._kept:
            while self._kept and (len(self._kept) + 1) * num_bytes > self.limit_bytes:
                self._kept.popitem(last=False)
            sample = read()
            if num_bytes > self.limit_bytes:
                return sample
            self._kept[case] = sample
        self._kept.move_to_end(case)
        return self._kept[case]

    def num_bytes(self) -> int:
        """Kept now."""
        return sum(image.nbytes + label.nbytes for image, label in self._kept.values())
