"""The ranks of one training as one of them sees the others. All sums are taken in the order of the ranks."""

from __future__ import annotations

import datetime
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from medweave_core.errors import UsageError
from medweave_steps.runtime import environment
from medweave_steps.runtime.imports import require

COLLECTIVE_TIMEOUT = datetime.timedelta(hours=2)
"""A rank may wait long for another one that validates a large case; that one is lost is told by `watch`, within a minute."""


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
        """Mean over all ranks, the same bits on each of them; every rank must call it with the same shape."""

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item, in order of rank; every rank must call it."""


class Alone:
    """The group of a training in one process."""

    rank, local_rank, world_size = 0, 0, 1

    def mean(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The values themselves."""
        return values

    def gather(self, item: Any) -> list[Any]:
        """The item alone."""
        return [item]


class RankGroup:
    """Ranks in processes of their own, on one node or several: torch.distributed with gloo, and NCCL beside it on GPUs.

    What is averaged here goes through the main memory, also where gradients go from GPU to GPU.
    """

    def __init__(self, place: environment.Place, *, uses_gpu: bool) -> None:
        self.rank, self.local_rank, self.world_size = place.rank, place.local_rank, place.world_size
        environment.prefer_interface_towards(place.store[0])
        self._distributed = require("torch.distributed", extra="train")
        backend = "cpu:gloo,cuda:nccl" if uses_gpu else "gloo"
        self._distributed.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)

    def mean(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """By all_gather and a sum in order of rank: a sum along a ring would depend on who begins."""
        if self.world_size == 1:
            return values
        torch = require("torch", extra="train")
        own = torch.from_numpy(np.ascontiguousarray(values))
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        self._distributed.all_gather(parts, own)
        total = np.zeros_like(values)
        for part in parts:
            total += part.numpy()
        return total / self.world_size

    def gather(self, item: Any) -> list[Any]:
        """By pickle, between the processes of one training only."""
        items: list[Any] = [None] * self.world_size
        self._distributed.all_gather_object(items, item)
        return items

    def close(self) -> None:
        """Waits for all ranks, then leaves the group."""
        self.gather(None)
        self._distributed.destroy_process_group()


def choose_device(wanted: Literal["auto", "cpu", "cuda"], *, local_rank: int = 0) -> Any:
    """The torch.device that a process computes on: the GPU of its place on the node, or the CPU.

    Raises:
        UsageError: a GPU was asked for and there is none that torch can use, or more ranks are on the node than GPUs.
    """
    torch = require("torch", extra="train")
    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" and not number:
        raise UsageError(
            "--device cuda cannot be used.",
            seen="no CUDA device that torch can use",
            expected="an NVIDIA GPU, its driver and a CUDA build of torch",
            do="leave --device at auto, or choose cpu",
        )
    if not number or wanted == "cpu":
        return torch.device("cpu")
    if local_rank >= number:
        raise UsageError(
            "there are more ranks on this node than GPUs.",
            seen=f"rank {local_rank + 1} of the node, {number} GPU{'s' if number > 1 else ''}",
            expected="at most one rank per GPU",
            do="start fewer ranks or more nodes, or choose --device cpu",
        )
    return torch.device("cuda", local_rank)
