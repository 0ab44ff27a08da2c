"""The batches of a training, and the contract of samplers. Suffix legend: B batch, C channel, I J K voxel axes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Patch = tuple[FloatArray, FloatArray, str]
"""Image [channel, I, J, K], label [channel, I, J, K], and the case."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Patches of one step.

    Attributes:
        image_BCIJK: float32, scaled to about 0 to 1; MR as it is stored.
        label_BCIJK: float32, what the loss of the task takes; in segmentation one channel of 0 and 1, one channel of class numbers,
            or one channel of 0 and 1 for each region.
        case_ids: the case of each patch.
        num_together: patches of the step that count, over all ranks.
        is_padding: the patches only keep a rank busy and have no weight.
    """

    image_BCIJK: FloatArray
    label_BCIJK: FloatArray
    case_ids: tuple[str, ...]
    num_together: int
    is_padding: bool = False

    @property
    def num_counted(self) -> int:
        """Number of patches that are not padding."""
        return 0 if self.is_padding else len(self.case_ids)

    def parts(self, number: int) -> list[Batch]:
        """Split the batch into `number` batches (fewer if there are fewer patches), in order; their sizes differ by one at most."""
        number = min(number, len(self.case_ids))
        ends = [len(self.case_ids) * place // number for place in range(number + 1)]
        return [
            dataclasses.replace(
                self, image_BCIJK=self.image_BCIJK[a:b], label_BCIJK=self.label_BCIJK[a:b], case_ids=self.case_ids[a:b]
            )
            for a, b in itertools.pairwise(ends)
        ]


class Sampler(Protocol):
    """The contract between the loop and what cuts the batches; a task supplies it."""

    @property
    def cases(self) -> Sequence[Any]:
        """Training cases."""

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's part of a step's global batch; steps may come in any order."""

    def divide_memory(self, num_processes: int) -> None:
        """Divide the memory for cases among processes that cut a rank's batches."""

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of patches that a rank has trained on in the first steps."""

    def num_padding(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of padding patches of a rank in the first steps."""

    def digest(self) -> str:
        """Return the SHA-256 of what is sampled; ranks with equal cases have equal digests."""


def joined(patches: Sequence[Patch], *, num_together: int, is_padding: bool = False) -> Batch:
    """Join patches into a batch."""
    return Batch(
        image_BCIJK=np.stack([image for image, _, _ in patches]),
        label_BCIJK=np.stack([label for _, label, _ in patches]),
        case_ids=tuple(case_id for _, _, case_id in patches),
        num_together=num_together,
        is_padding=is_padding,
    )


def steps_of_epoch(num_cases: int, batch_size: int) -> int:
    """Return the number of steps in which each case is used once."""
    return -(-num_cases // batch_size)
