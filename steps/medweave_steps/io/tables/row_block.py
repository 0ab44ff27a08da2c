"""Encoded rows of a table on disk: a sparse matrix in compressed rows (CSR) as memory-mapped arrays.

Suffix legend: B batch, F feature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

DTYPES = {
    "indptr": np.int64, "indices": np.int32, "values": np.float32, "targets": np.int16, "row_numbers": np.int64,
    "groups": np.int64,
}  # fmt: skip
"""Arrays of a block and their types; each is a file NAME.npy."""
ROW_FILES = tuple(f"{name}.npy" for name in DTYPES)
NO_CLASS = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """A block of encoded rows.

    Attributes:
        indptr: int64 [rows + 1]; the features of row n are the entries indptr[n] to indptr[n + 1].
        indices: int32, the feature of each entry.
        values: float32, its value; features without an entry are 0.
        targets: int16 [rows], number of the class; `NO_CLASS` where it is not known.
        row_numbers: int64 [rows], the row in the source table, from 0.
        groups: int64 [rows], equal for rows that belong together.
    """

    indptr: IntArray
    indices: npt.NDArray[np.int32]
    values: FloatArray
    targets: npt.NDArray[np.int16]
    row_numbers: IntArray
    groups: IntArray

    def __len__(self) -> int:
        return len(self.targets)

    def write_dense(self, numbers: IntArray, target_BF: FloatArray) -> None:
        """Write the features of some rows into an array of zeros, float32 [rows, features]."""
        counts = self.indptr[numbers + 1] - self.indptr[numbers]
        row = np.repeat(np.arange(len(numbers)), counts)
        before = np.cumsum(counts) - counts
        entry = np.arange(len(row)) + np.repeat(self.indptr[numbers] - before, counts)
        target_BF[row, self.indices[entry]] = self.values[entry]

    def dense(self, numbers: IntArray, *, num_features: int) -> FloatArray:
        """Return the features of some rows, float32 [rows, features]."""
        features_BF = np.zeros((len(numbers), num_features), np.float32)
        self.write_dense(numbers, features_BF)
        return features_BF


def make_block(matrix: Any, *, targets: Any, row_numbers: Any, groups: Any) -> RowBlock:
    """Return a block of rows.

    Args:
        matrix: scipy.sparse.csr_matrix [rows, features].
    """
    arrays = {
        "indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.data, "targets": targets,
        "row_numbers": row_numbers, "groups": groups,
    }  # fmt: skip
    return RowBlock(**{name: np.asarray(array, DTYPES[name]) for name, array in arrays.items()})


def write_block(folder: Path, block: RowBlock) -> None:
    """Write the arrays of a block into an existing folder."""
    for name in DTYPES:
        np.save(folder / f"{name}.npy", getattr(block, name), allow_pickle=False)


def read_block(read: Callable[[str], Any]) -> RowBlock:
    """Return a block.

    Args:
        read: returns the array of a file name.
    """
    return RowBlock(**{name: read(f"{name}.npy") for name in DTYPES})
