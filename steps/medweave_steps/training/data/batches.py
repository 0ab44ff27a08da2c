"""The batches of one rank, cut in the background, and the time that the training waited for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from medweave_steps.runtime.imports import require
from medweave_steps.training.data.batch import Batch, Sampler

AHEAD = 2
"""Batches that each worker process keeps ready."""


class _Source(Protocol):
    def batch(self, step: int) -> Batch:
        """Return the batch of a step; steps may come in any order."""

    def close(self) -> None:
        """End the thread or processes that cut the batches."""


class Batches:
    """The batches of one rank.

    Attributes:
        waited_s: how long `batch` has waited for them, s.

    Args:
        num_workers: processes that cut them, each of them whole batches; 0 is a thread of this one, one batch ahead.
        device: torch.device that they go to; for a GPU the processes' batches lie in pinned memory, out of which
            `Stepper` copies without waiting.
    """

    def __init__(self, sampler: Sampler, *, rank: int, world_size: int, num_workers: int, device: Any) -> None:
        self.waited_s = 0.0
        self._source: _Source = (
            _Processes(sampler, rank, world_size, num_workers, pinned=device.type == "cuda")
            if num_workers
            else _Thread(sampler, rank, world_size)
        )

    def batch(self, step: int) -> Batch:
        """Return the batch of a step."""
        started = time.monotonic()
        batch = self._source.batch(step)
        self.waited_s += time.monotonic() - started
        return batch

    def close(self) -> None:
        """End the thread or processes that cut the batches."""
        self._source.close()


def no_batch() -> Batch:
    """Return the batch of a rank that does not train: no patches, which count for nothing."""
    empty = np.zeros((0, 1, 1, 1, 1), np.float32)
    return Batch(image_BCIJK=empty, label_BCIJK=empty, case_ids=(), num_together=0, is_padding=True)


class _Thread:
    def __init__(self, sampler: Sampler, rank: int, world_size: int) -> None:
        self._sampler, self._rank, self._world_size = sampler, rank, world_size
        self._thread = ThreadPoolExecutor(1, "patches")
        self._next: tuple[int, Future[Batch]] | None = None

    def batch(self, step: int) -> Batch:
        ready = self._next[1] if self._next and self._next[0] == step else self._cut(step)
        batch = ready.result()
        self._next = step + 1, self._cut(step + 1)
        return batch

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _cut(self, step: int) -> Future[Batch]:
        return self._thread.submit(self._sampler.batch, step, rank=self._rank, world_size=self._world_size)


class _Processes:
    """Batches from torch's DataLoader. A batch depends only on its step, not on the process that cuts it."""

    def __init__(self, sampler: Sampler, rank: int, world_size: int, num_workers: int, *, pinned: bool) -> None:
        sampler.divide_memory(num_workers)
        self._patches = _Patches(sampler, rank, world_size)
        self._num_workers, self._pinned = num_workers, pinned
        self._expected = -1
        self._coming: Iterator[Any] = iter(())

    def batch(self, step: int) -> Batch:
        if step != self._expected:  # a resumed training starts anywhere
            self._coming = iter(self._loader(step))
        self._expected = step + 1
        image, label, case_ids, num_together, is_padding = next(self._coming)
        return Batch(
            image_BCIJK=image.numpy(), label_BCIJK=label.numpy(), case_ids=tuple(case_ids), num_together=num_together,
            is_padding=is_padding,
        )  # fmt: skip

    def close(self) -> None:
        self._coming = iter(())  # the workers end with their iterator

    def _loader(self, first: int) -> Any:
        data = require("torch.utils.data", extra="train")
        # By fork, which shares what is mapped into memory; each worker computes with one thread.
        return data.DataLoader(
            self._patches,
            batch_size=None,
            sampler=_From(first),
            num_workers=self._num_workers,
            prefetch_factor=AHEAD,
            pin_memory=self._pinned,
            multiprocessing_context="fork",
            # The workers' seeds are not used. Drawn from torch's global generator, they would shift a resumed training's by one.
            generator=require("torch", extra="train").Generator(),
        )


class _Patches:
    """The data set of a worker process: the batch of each step."""

    def __init__(self, sampler: Sampler, rank: int, world_size: int) -> None:
        self._sampler, self._rank, self._world_size = sampler, rank, world_size

    def __getitem__(self, step: int) -> tuple[Any, Any, list[str], int, bool]:
        torch = require("torch", extra="train")
        batch = self._sampler.batch(step, rank=self._rank, world_size=self._world_size)
        image, label = torch.from_numpy(batch.image_BCIJK), torch.from_numpy(batch.label_BCIJK)
        return image, label, list(batch.case_ids), batch.num_together, batch.is_padding


class _From:
    """The steps from a first one on, without an end."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[int]:
        step = self._first
        while True:
            yield step
            step += 1
