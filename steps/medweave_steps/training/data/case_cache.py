"""Training cases in the memory of a process, up to a limit."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple

FloatArray = npt.NDArray[np.float32]
Sample = tuple[FloatArray, FloatArray]
"""Image [channel, I, J, K] and label [I, J, K] of a case, before augmentation."""
MIB = 2**20


def sample_bytes(patch_shape: Triple, num_channels: int) -> int:
    """Return the size of a case in memory: its channels and its label in float32, padded to a patch."""
    return 4 * (num_channels + 1) * math.prod(patch_shape)


def cases_that_fit(mib: int, patch_shape: Triple, num_channels: int) -> int:
    """Return the number of cases that fit into a number of MiB."""
    return mib * MIB // sample_bytes(patch_shape, num_channels)


class CaseCache:
    """A cache in memory of the cases that a process used last.

    Before a case is read, the cases that were not used for longest are dropped until it fits.

    Attributes:
        limit_bytes: of all cases in memory.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._samples: OrderedDict[int, Sample] = OrderedDict()

    def get(self, case: int, num_bytes: int, read: Callable[[], Sample]) -> Sample:
        """Return a case from memory, or read it now; callers must not change it.

        Args:
            num_bytes: size of every case.
        """
        if case not in self._samples:
            while self._samples and (len(self._samples) + 1) * num_bytes > self.limit_bytes:
                self._samples.popitem(last=False)
            sample = read()
            if num_bytes > self.limit_bytes:
                return sample
            self._samples[case] = sample
        self._samples.move_to_end(case)
        return self._samples[case]

    def num_bytes(self) -> int:
        """Return the size of all cases in memory."""
        return sum(image.nbytes + label.nbytes for image, label in self._samples.values())
