"""Where the rounds stand: what the report tells of them, and what a checkpoint keeps after each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_steps.runtime.signals import deferred
from medweave_steps.train_distributed.replica import Ability, Share
from medweave_steps.training.distributed.average import packed, unpacked
from medweave_steps.training.loop import checkpoint, validate

_KEPT = ("weights", "best_score", "best_round", "best_weights", "rounds", "each_wh")


@dataclass(slots=True)
class Course:
    """What came of the rounds so far.

    Attributes:
        abilities: of the process that trains each replica.
        bfloat16: the arithmetic of all of them.
        weights: state dict of the last average, on the CPU; of the model that was given before the first round.
        best_score, best_round, best_weights: of the best average so far; round 0 is the model that was given.
        rounds: for the report, one object per round.
        shares: what the replicas brought, without the weights, per round.
        each_wh: of each round, Wh; None where nothing was counted.
    """

    abilities: list[Ability]
    bfloat16: bool
    weights: dict[str, Any]
    best_score: float = -1.0
    best_round: int = 0
    best_weights: dict[str, Any] = field(default_factory=dict)
    rounds: list[Mapping[str, Any]] = field(default_factory=list)
    shares: list[list[Share]] = field(default_factory=list)
    each_wh: list[float | None] = field(default_factory=list)

    @property
    def precision(self) -> str:
        """Of the arithmetic, as the options name it."""
        return "bfloat16" if self.bfloat16 else "float32"

    def consider(self, figures: Mapping[str, float | None]) -> None:
        """Keeps the weights if no earlier ones were better."""
        score = validate.score(figures)
        if score >= self.best_score:
            self.best_score, self.best_round, self.best_weights = score, len(self.rounds), self.weights

    def kept(self, memories: Sequence[bytes]) -> dict[str, Any]:
        """All that the rounds to come depend on, and all that is told of those before.

        Args:
            memories: of the replicas, as the engine gives them.
        """
        shares = [[dataclasses.asdict(share) for share in of_round] for of_round in self.shares]
        for share in (share for of_round in shares for share in of_round):
            del share["weights"]
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "shares": shares,
            # As tensors, each of which has a checksum in the file.
            "memories": [unpacked(memory) for memory in memories],
        }

    def take(self, kept: Mapping[str, Any]) -> list[bytes]:
        """Takes over what `kept` gave; returns the memories of the replicas."""
        for name in _KEPT:
            setattr(self, name, kept[name])
        self.shares = [[Share(weights=b"", **share) for share in of_round] for of_round in kept["shares"]]
        return [packed(memory) for memory in kept["memories"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """How a training is kept between two rounds.

    Attributes:
        folder: for its checkpoints, on the rank that writes them; None on others, and where none are wanted.
        identity: what the weights depend on, besides the data and torch itself.
        data_sha256: digest of the data.
        content: the checkpoint that it goes on from.
    """

    folder: Path | None
    identity: Mapping[str, Any]
    data_sha256: str
    content: Mapping[str, Any] | None = None

    def restored(self, course: Course) -> list[bytes] | None:
        """Takes over the checkpoint; the memories of the replicas, None where the training starts anew.

        Raises:
            UserInputError: it belongs to another training.
        """
        if self.content is None:
            return None
        checkpoint.check_identity(self.content, identity=self.identity, data_sha256=self.data_sha256)
        return course.take(self.content["state"])

    def write(self, course: Course, memories: Sequence[bytes], points: Sequence[Mapping[str, Any]]) -> None:
        """Writes a checkpoint, on the rank that does; INT and TERM wait until it is whole.

        Args:
            points: of the curves.
        """
        if self.folder is None:
            return
        with deferred():
            checkpoint.write_checkpoint(
                self.folder,
                {
                    "identity": json.dumps(dict(self.identity)),
                    "data_sha256": self.data_sha256,
                    "state": course.kept(memories),
                    "points": list(points),
                },
            )
