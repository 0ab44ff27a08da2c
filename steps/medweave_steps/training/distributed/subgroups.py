"""Parts of the ranks that exchange tensors among themselves: the stages of one replica, or the copies of one stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.group import COLLECTIVE_TIMEOUT


def open_subgroup(divisions: Sequence[Sequence[int]], *, rank: int) -> Any:
    """Divide all ranks into groups and return the torch process group of this rank; every rank must call it alike.

    Args:
        divisions: the ranks of each group, in order.
    """
    distributed = require("torch.distributed", extra="train")
    own = None
    for ranks in divisions:  # every rank creates all groups, in this order, as torch requires
        group = distributed.new_group(list(ranks), timeout=COLLECTIVE_TIMEOUT)
        own = group if rank in ranks else own
    return own


def average_in_place(tensors: Sequence[Any], group: Any, *, number: int) -> None:
    """Replace tensors of one type by their means over a group; every rank of it must call this with equal shapes.

    On a CPU the sum is taken in order of rank, as in `ddp`: gloo sums along a ring that starts at another rank in each part.

    Args:
        number: of ranks in the group.
    """
    if number == 1 or not tensors:
        return
    torch = require("torch", extra="train")
    own = torch.cat([tensor.reshape(-1) for tensor in tensors])
    if own.device.type == "cpu":
        parts = [torch.empty_like(own) for _ in range(number)]
        torch.distributed.all_gather(parts, own, group=group)
        own = parts[0]
        for part in parts[1:]:
            own += part
    else:
        torch.distributed.all_reduce(own, group=group)
    own.div_(number)
    for tensor, mean in zip(tensors, own.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view(tensor.shape))
