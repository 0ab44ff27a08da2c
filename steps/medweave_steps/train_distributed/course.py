"""The state of a training in rounds: figures for the report, and the content of checkpoints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_steps.runtime.signals import deferred
from medweave_steps.train_distributed.engines.replica import Ability, Share
from medweave_steps.training.distributed.average import packed, unpacked
from medweave_steps.training.loop import checkpoint

_SAVED_FIELDS = ("weights", "best_score", "best_round", "best_weights", "rounds", "each_wh")


@dataclass(slots=True)
class Course:
    """The results of the rounds so far.

    Attributes:
        abilities: of the process that trains each replica.
        bfloat16: the arithmetic of all of them.
        weights: state dict of the last average, on the CPU; before the first round that of the trained model.
        best_score, best_round, best_weights: of the best average so far; round 0 is the trained model.
        rounds: for the report, one object per round.
        shares: results of the replicas per round, without the weights.
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
        """Precision of the arithmetic, as the options name it."""
        return "bfloat16" if self.bfloat16 else "float32"

    def consider(self, score: float) -> None:
        """Store the weights as the best ones if no earlier ones had a better score."""
        if score >= self.best_score:
            self.best_score, self.best_round, self.best_weights = score, len(self.rounds), self.weights

    def saved(self, memories: Sequence[bytes]) -> dict[str, Any]:
        """Return the content of a checkpoint: everything that later rounds and the report depend on.

        Args:
            memories: of the replicas, as the engine gives them.
        """
        shares = [[dataclasses.asdict(share) for share in of_round] for of_round in self.shares]
        for share in (share for of_round in shares for share in of_round):
            del share["weights"]
        return {
            **{name: getattr(self, name) for name in _SAVED_FIELDS},
            "shares": shares,
            # As tensors, each of which has a checksum in the file.
            "memories": [unpacked(memory) for memory in memories],
        }

    def restore(self, saved: Mapping[str, Any]) -> list[bytes]:
        """Restore the content of a checkpoint and return the replicas' optimizer states."""
        for name in _SAVED_FIELDS:
            setattr(self, name, saved[name])
        self.shares = [[Share(weights=b"", **share) for share in of_round] for of_round in saved["shares"]]
        return [packed(memory) for memory in saved["memories"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCheckpoints:
    """The checkpoints of a training, written after each round.

    Attributes:
        folder: where they are written; None where none are wanted.
        writes: this rank writes them.
        identity: everything that the weights depend on, besides the data and torch itself.
        data_sha256: digest of the data.
        content: the checkpoint that the training resumes from.
    """

    folder: Path | None
    writes: bool
    identity: Mapping[str, Any]
    data_sha256: str
    content: Mapping[str, Any] | None = None

    def restored(self, course: Course) -> list[bytes] | None:
        """Restore the course from the checkpoint and return the replicas' optimizer states; None without a checkpoint.

        Raises:
            UserInputError: it belongs to another training.
        """
        if self.content is None:
            return None
        checkpoint.check_identity(self.content, identity=self.identity, data_sha256=self.data_sha256)
        return course.restore(self.content["state"])

    def write(self, course: Course, memories: Sequence[bytes], points: Sequence[Mapping[str, Any]]) -> None:
        """Write a checkpoint, if this rank writes them; INT and TERM are deferred until it is complete.

        Args:
            points: of the curves.
        """
        if self.folder is None or not self.writes:
            return
        with deferred():
            checkpoint.write_checkpoint(
                self.folder,
                {
                    "identity": json.dumps(dict(self.identity)),
                    "data_sha256": self.data_sha256,
                    "state": course.saved(memories),
                    "points": list(points),
                },
            )
