"""Engines: what spreads replicas over processes. All call the same functions of `replica`; their order cannot matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from medweave_core.errors import UsageError
from medweave_steps.train_distributed.engines.replica import Ability, Share

EngineName = Literal["in-order", "ddp", "compss"]
ENGINES: tuple[EngineName, ...] = ("in-order", "ddp", "compss")


class ReplicaEngine(Protocol):
    """The contract between the rounds and an engine; every returned list has one entry per replica, in their order."""

    def abilities(self) -> list[Ability]:
        """Return the abilities of each replica's process; opens the data there."""

    def train(self, round_number: int, weights: bytes, bfloat16: bool) -> list[Share]:
        """Train every replica for one round from the same weights; the engine stores the states of their optimizers."""

    def tallies(
        self, weights: bytes, choices: Sequence[Any], num_cases: int | None, bfloat16: bool
    ) -> list[list[list[Any]]]:
        """Return the tallies of each replica's share of the validation cases by these weights."""

    def memories(self) -> list[bytes]:
        """Return the packed optimizer states of the replicas, empty before the first round."""

    def restore(self, memories: Sequence[bytes]) -> None:
        """Restore the result of `memories`, of any engine."""

    def card_facts(self) -> dict[str, Any]:
        """Return facts about the engine for the model card and the report."""


def engine_named(option: str, *, by_deployment: str | None) -> EngineName:
    """Return the engine to use.

    Args:
        option: the value of --engine.
        by_deployment: engine that the deployment names, for `auto`.
    Raises:
        UsageError: the deployment names none that is known.
    """
    chosen = (by_deployment or "in-order") if option == "auto" else option
    for name in ENGINES:
        if chosen == name:
            return name
    raise UsageError(
        "the deployment requests an unknown engine.",
        seen=f"MEDWEAVE_ENGINE={chosen!r}",
        expected=f"one of {', '.join(ENGINES)}",
        do="correct `engine` of the deployment, or set --engine",
    )
