"""Messages over gloo, in the process group that the ranks have in any case."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.group import RankGroup
from medweave_steps.training.distributed.transports.messages import Transport


class GlooTransport(Transport):
    """Point-to-point messages of torch.distributed."""

    def __init__(self, process_group: Any, *, rank: int, world_size: int) -> None:
        """Use a torch process group of backend gloo, in which the server is rank 0."""
        super().__init__(rank=rank, world_size=world_size)
        self._group, self._torch = process_group, require("torch", extra="train")

    def close(self) -> None:
        """Leave the process group to its owner."""

    def _send(self, peer: int, part: npt.NDArray[Any]) -> None:
        # frombuffer gives memory that must not be written to, which torch warns about
        self._group.send([self._torch.from_numpy(part if part.flags.writeable else part.copy())], peer, 0).wait()

    def _receive(self, peer: int, part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self._group.recv([self._torch.from_numpy(part)], peer, 0).wait()
        return part


def open_transport(group: RankGroup) -> Transport:
    """Return the connections of this rank, which the group has made."""
    return GlooTransport(group.process_group, rank=group.rank, world_size=group.world_size)
