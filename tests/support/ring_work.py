"""An all-reduce of torch by groups of ranks, and the bytes that it sends; a separate module, because new processes import it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The result of one rank.

    Attributes:
        ranks: number of ranks in the group.
        deviation: largest difference of a number from the mean over the ranks.
        sent_bytes: that this process wrote to its connections.
    """

    ranks: int
    deviation: float
    sent_bytes: int


def reduced(length: int, group: Any) -> list[Reduced]:
    """Return the results of all ranks in groups of the first 2, 3, ... ranks, for arrays of float32."""
    import torch

    results = []
    for number in range(2, group.world_size + 1):
        ring = torch.distributed.new_group(list(range(number)))
        if group.rank < number:
            torch.distributed.all_reduce(torch.zeros(1), group=ring)  # connects
            values = [np.random.default_rng(rank).normal(size=length).astype(np.float32) for rank in range(number)]
            own, before = torch.from_numpy(values[group.rank].copy()), _written_bytes()
            torch.distributed.all_reduce(own, group=ring)
            sent = _written_bytes() - before
            deviation = np.abs(own.numpy() / number - np.mean(values, axis=0, dtype=np.float64)).max()
            results.append(Reduced(ranks=number, deviation=float(deviation), sent_bytes=sent))
        group.gather(None)  # a heartbeat in another thread is small; another collective would be counted
    return [result for of_rank in group.gather(results) for result in of_rank]


def _written_bytes() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["wchar"])
