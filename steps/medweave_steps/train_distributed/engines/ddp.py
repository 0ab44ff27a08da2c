"""A process per replica on the nodes of the node group, joined by torch.distributed; every rank computes the same average."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from medweave_steps.train_distributed.engines import replica
from medweave_steps.train_distributed.engines.replica import Ability, ReplicaJob, Share
from medweave_steps.training.distributed.agreement import check_agreement
from medweave_steps.training.distributed.group import Group


class DdpEngine:
    """An engine with one replica per rank. All ranks gather all results, so that no rank waits for another one's arithmetic."""

    def __init__(self, job: ReplicaJob, group: Group) -> None:
        assert group.world_size == job.replicas
        self.job, self.group = dataclasses.replace(job, local_rank=group.local_rank), group
        self._memory = b""

    def abilities(self) -> list[Ability]:
        """Return the abilities of all ranks.

        Raises:
            UserInputError: they have opened other cases.
        """
        check_agreement(self.group, {"digest of the training cases": replica.digest(self.job)})
        return self.group.gather(replica.ability(self.job))

    def train(self, round_number: int, weights: bytes, bfloat16: bool) -> list[Share]:
        """Train all replicas at once and return the shares of all ranks."""
        share, self._memory = replica.train(self.job, round_number, self.group.rank, weights, self._memory, bfloat16)
        return self.group.gather(share)

    def tallies(
        self, weights: bytes, choices: Sequence[Any], num_cases: int | None, bfloat16: bool
    ) -> list[list[list[Any]]]:
        """Return the tallies of all ranks."""
        return self.group.gather(replica.tally(self.job, self.group.rank, weights, choices, num_cases, bfloat16))

    def memories(self) -> list[bytes]:
        """Return the optimizer states of all ranks; every rank must call it."""
        return self.group.gather(self._memory)

    def restore(self, memories: Sequence[bytes]) -> None:
        """Restore this rank's optimizer state."""
        self._memory = memories[self.group.rank]

    def card_facts(self) -> dict[str, Any]:
        """Return no facts."""
        return {}
