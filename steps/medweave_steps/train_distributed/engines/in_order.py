"""One process: the replicas are trained one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medweave_steps.train_distributed.engines import replica
from medweave_steps.train_distributed.engines.replica import Ability, ReplicaJob, Share


class InOrderEngine:
    """The engine that needs only this process; the reference for all others."""

    def __init__(self, job: ReplicaJob) -> None:
        self.job, self._replicas = job, range(job.replicas)
        self._memories = [b"" for _ in self._replicas]

    def abilities(self) -> list[Ability]:
        """Return the abilities of this process, once per replica."""
        return [replica.ability(self.job)] * len(self._replicas)

    def train(self, round_number: int, weights: bytes, bfloat16: bool) -> list[Share]:
        """Train one replica after the other and return their shares."""
        shares = []
        for number in self._replicas:
            share, self._memories[number] = replica.train(
                self.job, round_number, number, weights, self._memories[number], bfloat16
            )
            shares.append(share)
        return shares

    def tallies(
        self, weights: bytes, choices: Sequence[Any], num_cases: int | None, bfloat16: bool
    ) -> list[list[list[Any]]]:
        """Return the tallies of the shares, computed one after the other."""
        return [replica.tally(self.job, number, weights, choices, num_cases, bfloat16) for number in self._replicas]

    def memories(self) -> list[bytes]:
        """Return the optimizer states."""
        return list(self._memories)

    def restore(self, memories: Sequence[bytes]) -> None:
        """Restore the optimizer states."""
        self._memories = list(memories)

    def card_facts(self) -> dict[str, Any]:
        """Return no facts."""
        return {}
