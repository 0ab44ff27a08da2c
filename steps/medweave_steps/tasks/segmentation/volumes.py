"""Whole volumes instead of patches: every case exactly once per epoch, in another random order in each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np

from medweave_core.contracts.volume import Triple, triple_of
from medweave_core.errors import UserInputError
from medweave_steps.tasks.segmentation.sampler import PatchSampler
from medweave_steps.training.data.batch import Batch, Patch
from medweave_steps.training.data.case_cache import MIB, CaseCache, sample_bytes
from medweave_steps.training.data.epoch_order import EpochOrder


class VolumeSampler(PatchSampler):
    """A sampler that distributes each epoch's cases over its steps; the last step of an epoch has the remaining ones.

    A rank without a case in that step gets one that has no weight. The order does not depend on the number of ranks: each rank
    takes its own part of it.

    Args:
        cache_mib: memory for cases that were read, MiB; None caches no case.
    """

    def __init__(self, *args: Any, cache_mib: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cache = CaseCache((cache_mib or 0) * MIB)
        self.order = EpochOrder(num_cases=len(self.cases), batch_size=self.batch_size, seed=self.seed)

    def divide_memory(self, num_processes: int) -> None:
        """Divide the cache among processes that each cut some of a rank's batches."""
        self.cache.limit_bytes //= num_processes

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's cases of a step."""
        return self.order.batch(step, self._volume, rank=rank, world_size=world_size)

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of cases that a rank has trained on in the first steps."""
        return self.order.num_counted(steps, rank=rank, world_size=world_size)

    def num_padding(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of padding cases: one for each of the first steps that has no case for the rank."""
        return self.order.num_padding(steps, rank=rank)

    def check_shapes(self) -> None:
        """Refuse cases that do not fit into a patch.

        Raises:
            UserInputError: names the first such case.
        """
        for case in self.cases:
            if any(n > side for n, side in zip(case.label_IJK.shape, self.patch_shape, strict=True)):
                raise UserInputError(
                    f"{case.case_id} is larger than --patch-shape.",
                    seen=f"{' x '.join(map(str, case.label_IJK.shape))} voxels",
                    expected=f"at most {' x '.join(map(str, self.patch_shape))}: with --epochs, a patch contains a whole case",
                    do="set --patch-shape to the size of the largest case",
                )

    def _volume(self, number: int, step: int, place: int) -> Patch:
        case = self.cases[number]
        num_bytes = sample_bytes(self._shape(), len(case.volume_CIJK))
        sample = self.cache.get(number, num_bytes, lambda: self._plain(case, np.array(case.label_IJK.shape) / 2))
        return self._changed(sample, case, np.random.default_rng((self.seed, step, place)))

    def _shape(self) -> Triple:
        return triple_of(self.patch_shape)
