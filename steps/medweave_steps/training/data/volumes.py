"""Whole volumes instead of patches: every case exactly once an epoch, in an order that is drawn anew for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.training.data.chunks import MIB, Chunk, KeptSamples, cases_that_fit, chunk_of, sample_bytes
from medweave_steps.training.data.patches import Batch, Patch, PatchSampler, joined


def steps_of_epoch(num_cases: int, batch_size: int) -> int:
    """Steps in which each case is seen once."""
    return -(-num_cases // batch_size)


class VolumeSampler(PatchSampler):
    """Deals each epoch's cases to its steps; the last step of an epoch has what is left.

    A rank that is left without a case in that step gets one that counts nothing, since it must take part in the exchange of
    gradients. The order does not depend on the ranks, nor on the chunks: each rank goes through its own part of it.

    Args:
        chunk_mib: memory for the cases that a rank keeps, MiB; an epoch is cut into chunks that fit.
        cache_mib: the same memory where epochs are not cut. None of the two keeps nothing.
    """

    def __init__(self, *given: Any, chunk_mib: int | None = None, cache_mib: int | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        self.chunk_mib = chunk_mib
        self.kept = KeptSamples((chunk_mib or cache_mib or 0) * MIB)

    def divide_memory(self, num_processes: int) -> None:
        """For so many processes that each cut some of a rank's batches: what all keep must fit."""
        self.kept.limit_bytes //= num_processes

    def chunk_of(self, step: int, *, world_size: int) -> Chunk | None:
        """Where a step is in the chunks of its epoch."""
        if self.chunk_mib is None:
            return None
        num_steps = steps_of_epoch(len(self.cases), self.batch_size)
        fitting = cases_that_fit(self.chunk_mib, self._shape(), len(self.cases[0].volume_CIJK))
        most_steps = fitting // -(-self.batch_size // world_size)
        return chunk_of(step % num_steps, num_steps=num_steps, most_steps=most_steps)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """This rank's cases of a step."""
        cases = self._cases_of(step)
        places = range(rank, len(cases), world_size)
        volumes = [self._volume(cases[place], step, place) for place in places]
        chunk = self.chunk_of(step, world_size=world_size)
        if volumes:
            return joined(volumes, num_together=len(cases), chunk=chunk)
        return joined([self._volume(cases[0], step, rank)], num_together=len(cases), is_padding=True, chunk=chunk)

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Cases that a rank has seen in the first steps."""
        return sum(len(range(rank, len(self._cases_of(step)), world_size)) for step in range(steps))

    def num_padding(self, steps: int, *, rank: int, world_size: int) -> int:
        """Cases that count nothing, one for each of the first steps that has none for a rank."""
        return sum(rank >= len(self._cases_of(step)) for step in range(steps))

    def check_shapes(self) -> None:
        """Refuses cases of which a patch would not hold the whole.

        Raises:
            UserInputError: names the first such case.
        """
        for case in self.cases:
            if any(n > side for n, side in zip(case.label_IJK.shape, self.patch_shape, strict=True)):
                raise UserInputError(
                    f"{case.case_id} is larger than --patch-shape.",
                    seen=f"{' x '.join(map(str, case.label_IJK.shape))} voxels",
                    expected=f"at most {' x '.join(map(str, self.patch_shape))}: with --epochs a patch holds a whole case",
                    do="give the sides of the largest case as --patch-shape",
                )

    def _cases_of(self, step: int) -> list[int]:
        epoch, place = divmod(step, steps_of_epoch(len(self.cases), self.batch_size))
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.cases))
        return [int(case) for case in order[place * self.batch_size : (place + 1) * self.batch_size]]

    def _volume(self, number: int, step: int, place: int) -> Patch:
        case = self.cases[number]
        num_bytes = sample_bytes(self._shape(), len(case.volume_CIJK))
        sample = self.kept.get(number, num_bytes, lambda: self._plain(case, np.array(case.label_IJK.shape) / 2))
        return self._changed(sample, case, np.random.default_rng((self.seed, step, place)))

    def _shape(self) -> Triple:
        i, j, k = (int(side) for side in self.patch_shape)
        return i, j, k
