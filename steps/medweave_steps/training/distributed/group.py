"""The ranks of one training as one of them sees the others. All sums are taken in the order of the ranks."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from medweave_steps.runtime import environment
from medweave_steps.runtime.imports import require

COLLECTIVE_TIMEOUT = datetime.timedelta(hours=2)
"""Long, because a rank waits while another one validates a large case; `watch` detects a lost rank within a minute."""


class Group(Protocol):
    """All ranks of a training.

    Attributes:
        rank: place of this process, from 0.
        local_rank: place among those of this node; picks the GPU.
        world_size: number of ranks.
    """

    rank: int
    local_rank: int
    world_size: int

    def mean(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the mean over all ranks, the same bits on each; every rank must call it with the same shape."""

    def gather(self, item: Any) -> list[Any]:
        """Return every rank's item in order of rank; every rank must call it."""


class Alone:
    """The group of a training in one process."""

    rank, local_rank, world_size = 0, 0, 1

    def mean(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the values themselves."""
        return values

    def gather(self, item: Any) -> list[Any]:
        """Return the item alone."""
        return [item]


class RankGroup:
    """The ranks of several processes on one node or several: torch.distributed with gloo, and also NCCL on GPUs.

    `mean` and `gather` use the main memory, also where gradients are exchanged between GPUs.

    Attributes:
        unresponsive: ranks without a heartbeat, where the training continues without them.
        host: name of the machine of rank 0, as every rank reaches it.
        process_group: torch's group of all ranks.
    """

    def __init__(
        self, place: environment.RankPlace, *, uses_gpu: bool, unresponsive: Collection[int] = frozenset()
    ) -> None:
        self.unresponsive, self._rest = unresponsive, None
        self.rank, self.local_rank, self.world_size = place.rank, place.local_rank, place.world_size
        self.host = place.store[0]
        environment.prefer_interface_towards(self.host)
        self._distributed = require("torch.distributed", extra="train")
        backend = "cpu:gloo,cuda:nccl" if uses_gpu else "gloo"
        self._distributed.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
        self.process_group = self._distributed.group.WORLD

    def mean(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the mean over all ranks, by all_gather and a sum in order of rank: a ring's sum depends on its start."""
        if self.world_size == 1:
            return values
        torch = require("torch", extra="train")
        own = torch.from_numpy(np.ascontiguousarray(values))
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        self._distributed.all_gather(parts, own, group=self._rest)
        total = np.zeros_like(values)
        for part in parts:
            total += part.numpy()
        return total / self.world_size

    def gather(self, item: Any) -> list[Any]:
        """Return every rank's item in order of rank; pickled, between the processes of one training only."""
        items: list[Any] = [None] * self.world_size
        self._distributed.all_gather_object(items, item, group=self._rest)
        return items

    def leave_out(self, lost: Collection[int]) -> None:
        """Go on without some ranks, as a group of the others, in the same order; each of these must call it.

        Args:
            lost: not rank 0.
        """
        rest = [rank for rank in range(self.world_size) if rank not in lost]
        self._rest = self._distributed.new_group(rest, timeout=COLLECTIVE_TIMEOUT, use_local_synchronization=True)
        self.rank, self.world_size = rest.index(self.rank), len(rest)

    def close(self) -> None:
        """Wait for all ranks, then leave the group."""
        self.gather(None)
        if self._rest is None:  # else it would wait for those that are lost
            self._distributed.destroy_process_group()
