"""Training batches of rows of a table. Suffix legend: B batch, F feature, C class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.data.epoch_order import EpochOrder

FloatArray = npt.NDArray[np.float32]


class TableRows:
    """The rows of several parts as one list; their files are opened once and stay memory-mapped.

    Args:
        parts: in order.
        num_features: of a row.
    """

    def __init__(self, parts: Sequence[CaseFolder], *, num_features: int) -> None:
        self.num_features = num_features
        self._blocks = [part.rows() for part in parts]
        self._ends = np.cumsum([len(block) for block in self._blocks])
        self.targets = np.concatenate([np.zeros(0, np.int16), *(block.targets for block in self._blocks)])
        self._names = [part.case.case_id for part in parts]

    def __len__(self) -> int:
        return len(self.targets)

    def dense(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> FloatArray:
        """Return the features of some rows, float32 [B, F]."""
        numbers = np.asarray(rows, np.int64)
        features_BF = np.zeros((len(numbers), self.num_features), np.float32)
        part = np.searchsorted(self._ends, numbers, side="right")
        for place in np.unique(part):
            block, own = self._blocks[place], np.flatnonzero(part == place)
            first = int(self._ends[place]) - len(block)
            features_BF[own] = block.dense(numbers[own] - first, num_features=self.num_features)
        return features_BF

    def names(self, rows: Sequence[int]) -> tuple[str, ...]:
        """Return the part of each row, for messages."""
        return tuple(self._names[place] for place in np.searchsorted(self._ends, rows, side="right"))


class TableSampler:
    """A sampler with every row exactly once per epoch, as `EpochOrder`. A rank without a row in a step gets one without weight.

    Args:
        parts: training parts.
        num_features: of a row.
    """

    def __init__(
        self, parts: Sequence[CaseFolder], *, targets: ClassTargets, num_features: int, batch_size: int, seed: int
    ) -> None:
        self.targets, self.rows = targets, TableRows(parts, num_features=num_features)
        self.order = EpochOrder(num_cases=len(self.rows), batch_size=batch_size, seed=seed)
        self._identity = [(part.case.case_id, part.case.num_rows) for part in parts]

    @property
    def cases(self) -> Sequence[int]:
        """Return the numbers of the training rows."""
        return range(len(self.rows))

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's rows of a step."""
        together = self.order.cases_of(step)
        own = together[rank::world_size]
        is_padding = not own
        own = own or together[:1]
        truth_BC = self.rows.targets[own][:, None] == np.arange(len(self.targets.classes))
        return Batch(
            image_BCIJK=self.rows.dense(own)[:, :, None, None, None],
            label_BCIJK=truth_BC.astype(np.float32),
            case_ids=self.rows.names(own),
            num_together=len(together),
            is_padding=is_padding,
        )

    def divide_memory(self, num_processes: int) -> None:
        """Divide the memory for cases among processes; the rows stay in the memory of their files, which processes share."""

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of rows that a rank has trained on in the first steps."""
        return self.order.num_counted(steps, rank=rank, world_size=world_size)

    def num_padding(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of padding rows: one for each of the first steps that has no row for the rank."""
        return self.order.num_padding(steps, rank=rank)

    def digest(self) -> str:
        """Return the SHA-256 of the parts in their order, with the classes."""
        text = f"{self.targets.names} {self._identity} {self.rows.num_features}"
        return hashlib.sha256(text.encode() + self.rows.targets.tobytes()).hexdigest()
