"""The classification of the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.classifications import ClassifiedCase
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.tables import ENCODER_FILE
from medweave_core.contracts.volume import MODALITY_NAMES, is_table
from medweave_core.errors import UserInputError
from medweave_steps.inference.engine import Engine, check_finite
from medweave_steps.io.cohort.prepared import PreparedFolder
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.tables.row_block import RowBlock
from medweave_steps.tasks.classification.outputs import ClassTargets

ROWS_AT_ONCE = 1024


def row_id(number: int) -> str:
    """Return the id of a row in results: its number in the source table, from 0."""
    return f"row-{number:09d}"


def check_table_fits(card: ModelCard, prepared: PreparedFolder) -> None:
    """Check that the rows were encoded for the model, and that the model takes rows.

    Raises:
        UserInputError: one has rows of a table and the other images, or they have different encoders.
    """
    of_model, of_batch = is_table(card.input.channel_names), is_table(prepared.cohort.channels)
    if of_model != of_batch:
        raise UserInputError(
            f"the model '{card.name}' does not match this batch.",
            seen=f"{'rows of a table' if of_batch else 'images or volumes'} (cohort.json)",
            expected=f"{MODALITY_NAMES[card.input.modality]} (model_card.json, input)",
            do="use a batch of encode-table for a model of tables, and of preprocess for other models",
        )
    if of_model and card.files.get(ENCODER_FILE) != sha256_of_file(prepared.folder / ENCODER_FILE):
        raise UserInputError(
            f"the rows were not encoded for the model '{card.name}'.",
            seen=f"another {ENCODER_FILE} in the batch than in the model folder",
            expected="rows that were encoded by the encoder of the model",
            do="run encode-table with --model and this model folder",
        )


def classify_rows(prepared: PreparedFolder, engine: Engine, card: ModelCard) -> Iterator[list[ClassifiedCase]]:
    """Yield the results of the rows in the order of the parts, `ROWS_AT_ONCE` at once.

    Args:
        engine: compiled for a batch of `ROWS_AT_ONCE`.
    Raises:
        InternalError: the network gave values that are not finite.
    """
    targets = ClassTargets.of(card)
    for part in prepared.cases():
        block = part.rows()
        for low in range(0, len(block), ROWS_AT_ONCE):
            rows = np.arange(low, min(low + ROWS_AT_ONCE, len(block)))
            probability_BC = _probabilities(block, rows, engine, card)
            decided_BC = targets.decided(probability_BC, card.postprocessing)
            yield [
                ClassifiedCase(
                    case_id=row_id(int(block.row_numbers[row])),
                    source_format="table",
                    files={},
                    classes=targets.named(decided),
                    probabilities={
                        name: round(float(value), 6) for name, value in zip(targets.names, probability, strict=True)
                    },
                )
                for row, decided, probability in zip(rows, decided_BC, probability_BC, strict=True)
            ]


def _probabilities(
    block: RowBlock, rows: npt.NDArray[np.int64], engine: Engine, card: ModelCard
) -> npt.NDArray[np.float64]:
    """Return the calibrated probability of each class of some rows, float64 [B, C]; the batch is filled up with zeros."""
    features_BCIJK = np.zeros((ROWS_AT_ONCE, card.input.channels, 1, 1, 1), np.float32)
    block.write_dense(rows, features_BCIJK[:, :, 0, 0, 0])
    logits_BC = engine.infer(features_BCIJK)[: len(rows)]
    check_finite(logits_BC, card, what="logits")
    return ClassTargets.of(card).probabilities(logits_BC, temperature=card.postprocessing.temperature)
