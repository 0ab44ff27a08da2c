"""Validation on rows of a table: as of images, with a part of the table in place of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import Postprocessing
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.tables.row_block import RowBlock
from medweave_steps.metrics.classification import Predictions
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.tasks.classification.loss import check_logits
from medweave_steps.tasks.classification.validation import ClassificationValidator
from medweave_steps.training.loop.validator import Figures

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsTally:
    """The network's output for the rows of a part, with their truth.

    Attributes:
        logits_NC: of each class, without temperature.
        truth_NC: which class the row has.
    """

    logits_NC: npt.NDArray[np.float64]
    truth_NC: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableValidator(ClassificationValidator):
    """The rows of the validation parts; without any, the last weights are kept and nothing is calibrated.

    Attributes:
        num_features: of a row.
    """

    num_features: int

    def _tally_of(self, folder: CaseFolder, predictor: Callable[[Any], Any]) -> Any:
        torch = require("torch", extra="train")
        block, parts = folder.rows(), []
        for features_BF in dense_blocks(block, num_features=self.num_features):
            rows = torch.from_numpy(features_BF[:, :, None, None, None]).to(self.device)
            with torch.inference_mode():
                logits_BC = predictor(rows)
            check_logits(tuple(logits_BC.shape), len(self.targets.classes))
            parts.append(np.asarray(logits_BC.tolist(), np.float64))
        truth_NC = np.asarray(block.targets)[:, None] == np.arange(len(self.targets.classes))
        return RowsTally(logits_NC=np.concatenate(parts), truth_NC=truth_NC)

    def choose(self, context: StepContext, per_case: Sequence[Sequence[Any]]) -> tuple[Postprocessing, Figures]:
        """Fit the temperature on all rows, as for images."""
        if per_case:
            return ClassificationValidator.choose(self, context, per_case)
        context.notice("no validation rows: the last weights are kept, and probabilities are not calibrated.")
        return self.plain, {}

    def figures(self, tallies: Sequence[Any]) -> Figures:
        """Return the figures over all rows; none without validation rows."""
        return ClassificationValidator.figures(self, tallies) if tallies else {}

    def score(self, figures: Any) -> float:
        """Return the score as for images; without validation rows a constant, with which the last weights are the best."""
        return ClassificationValidator.score(self, figures) if figures else 0.0

    def progress(self, figures: Any) -> tuple[str, dict[str, float]]:
        """Return macro-F1 and accuracy."""
        return ClassificationValidator.progress(self, figures) if figures else ("no validation rows", {})

    def _arrays(self, tallies: Sequence[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        return tuple(np.concatenate([getattr(tally, name) for tally in tallies]) for name in ("logits_NC", "truth_NC"))  # type: ignore[return-value]

    def _add_cases(self, context: StepContext, seen: Predictions) -> None:
        """Add nothing: a report has no rows."""


def dense_blocks(block: RowBlock, *, num_features: int, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[Any]:
    """Yield the features of all rows in order, float32 [rows, features], at most some rows at once."""
    for low in range(0, len(block), rows_at_once):
        yield block.dense(np.arange(low, min(low + rows_at_once, len(block))), num_features=num_features)
