"""Synthetic inpatients as a sparse binary matrix of codes, with their care purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.tables import TableColumn, TableSchema
from medweave_steps.phantom.tables import SCHEMA_FILE, schema_text, write_table
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

MATRIX_FILE, TABLE_FILE = "codes.npz", "inpatients.csv"
NUM_CODES = 14_637
CARE_PURPOSES: Mapping[str, int] = {
    "other situations": 5_271, "cardiovascular / respiratory care": 21_684, "circulatory disorders": 15_342,
    "neuro-muscular care": 6_310, "mental health care": 3_448, "sensory and skin care": 9_679,
    "rheumatic / orthopaedic care": 21_247, "post-traumatic care": 16_594, "amputations": 875, "palliative care": 2_426,
    "waiting for placement": 359, "rehabilitation": 2_643, "nutritional care": 10_799, "no grouping": 20,
}  # fmt: skip
"""Inpatients of each class; García Henao et al. 2020, ICITCS, table 1."""
_CODES_OF_PATIENT = (20, 60)
_CODES_OF_CLASS = 300
_OWN_SHARE = 0.25


def class_counts(rows: int) -> dict[str, int]:
    """Return the rows of each class in the proportions of the table, by largest remainder."""
    total = sum(CARE_PURPOSES.values())
    exact = {name: rows * count / total for name, count in CARE_PURPOSES.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: rows - sum(counts.values())]:
        counts[name] += 1
    return counts


def write_inpatients(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the matrix of codes, the table of care purposes and the schema; return the numbers of rows."""
    sparse = require("scipy.sparse", extra="phantom")
    rng = np.random.default_rng(config.seed)
    counts = class_counts(config.rows)
    purpose = rng.permutation(np.repeat(np.arange(len(counts)), list(counts.values())))
    row, code = _codes(rng, purpose)
    matrix = sparse.csr_matrix((np.ones(len(row), np.float32), (row, code)), shape=(config.rows, NUM_CODES))
    matrix.data[:] = 1  # a code that was drawn twice
    table = {
        "inpatient": np.char.add("inpatient-", np.char.zfill(np.arange(config.rows).astype(str), 6)),
        "care_purpose": np.array(list(counts))[purpose],
    }
    columns = (TableColumn(name="inpatient", kind="identifier"), TableColumn(name="care_purpose", kind="target"))
    with atomic_directory(config.output) as folder:
        sparse.save_npz(folder / MATRIX_FILE, matrix)
        write_table(folder / TABLE_FILE, table, separator=",")
        schema = schema_text(TableSchema(columns=columns, synthetic=True))
        (folder / SCHEMA_FILE).write_text(schema, encoding="utf-8")
    context.notice(f"{config.rows} inpatients with {matrix.nnz} codes.")
    return {"rows": config.rows, "rows_by_class": counts, "codes": int(matrix.nnz), "synthetic": True}


def _codes(
    rng: np.random.Generator, purpose: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return row and code of every entry: most codes are common to all classes, a quarter is of the class."""
    of_class = np.array([rng.choice(NUM_CODES, _CODES_OF_CLASS, replace=False) for _ in CARE_PURPOSES])
    number = rng.integers(*_CODES_OF_PATIENT, len(purpose))
    row = np.repeat(np.arange(len(purpose)), number)
    common = (NUM_CODES * rng.random(len(row)) ** 3).astype(np.int64)
    own = of_class[purpose[row], (rng.random(len(row)) ** 2 * _CODES_OF_CLASS).astype(np.int64)]
    return row, np.where(rng.random(len(row)) < _OWN_SHARE, own, common)
