"""The encoding of rows: fitted on training rows, applied to all. Suffix legend: N rows."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.tables import EncodedColumn, TableColumn, TableEncoder, TableSchema
from medweave_core.errors import UserInputError
from medweave_steps.io.tables.reader import EXTRA, CellType
from medweave_steps.runtime.imports import require

FEATURE_KINDS = ("numeric", "category", "hashed", "binary")
TRUE, FALSE = ("1", "Y", "y", "true", "True"), ("0", "N", "n", "false", "False")
FloatArray = npt.NDArray[np.float64]


def cell_types(schema: TableSchema, *, only: tuple[str, ...] | None = None) -> dict[str, CellType]:
    """Return how each column is read: as a number, or as text.

    Args:
        only: kinds of the columns to read; None for those with features.
    """
    kinds = only or FEATURE_KINDS
    return {
        one.name: "number" if one.kind == "numeric" else "text" for one in schema.columns if one.kind in kinds
    }  # fmt: skip


def texts_of(batch: Any, name: str) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """Return the cells of a text column as numbers of distinct values, int64 [N], and the values; None for empty cells."""
    encoded = batch.column(name).dictionary_encode(null_encoding="encode")
    values = [None if value is None else value.strip() for value in encoded.dictionary.to_pylist()]
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64), values


def numbers_of(batch: Any, column: TableColumn | EncodedColumn) -> FloatArray:
    """Return the cells of a numeric column, float64 [N], after the logarithm; NaN for empty cells.

    Raises:
        UserInputError: a value is not finite, or is negative before a logarithm.
    """
    numbers = np.asarray(batch.column(column.name).to_numpy(zero_copy_only=False), np.float64)
    lowest = 0.0 if column.log else -math.inf
    if not ((numbers >= lowest) & (numbers < math.inf) | np.isnan(numbers)).all() or (numbers == -math.inf).any():
        raise UserInputError(
            f"the column '{column.name}' has a value that cannot be used.",
            seen="a negative or infinite number" if column.log else "an infinite number",
            expected="finite numbers of 0 or more: the schema declares `log`" if column.log else "finite numbers",
            do="correct the table" + (", or leave out `log` for this column" if column.log else ""),
        )
    return np.log1p(numbers) if column.log else numbers


@functools.lru_cache(maxsize=1 << 18)
def bucket_of(value: str, buckets: int) -> int:
    """Return the bucket of a value, the same on every machine: its BLAKE2b digest modulo the number of buckets."""
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest()) % buckets


class EncoderFit:
    """The statistics of training rows, batch after batch.

    Args:
        schema: of the table.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows = 0
        self._numbers = {one.name: (0, 0.0, 0.0) for one in schema.columns if one.kind == "numeric"}
        self._values: dict[str, set[str]] = {one.name: set() for one in schema.columns if one.kind == "category"}

    def add(self, batch: Any) -> None:
        """Add training rows, a pyarrow.RecordBatch with the columns of `cell_types`.

        Raises:
            UserInputError: a value cannot be used.
        """
        self.rows += batch.num_rows
        for column in self.schema.columns:
            if column.kind == "numeric":
                self._add_numbers(column, numbers_of(batch, column))
            elif column.kind == "category":
                self._values[column.name].update(value for value in texts_of(batch, column.name)[1] if value)
            elif column.kind == "binary":
                _ones(batch, column)

    def _add_numbers(self, column: TableColumn, numbers: FloatArray) -> None:
        """Merge count, mean and sum of squared differences; Chan et al. 1983, The American Statistician 37(3):242-247."""
        known = numbers[~np.isnan(numbers)]
        if not len(known):
            return
        count, mean, squares = self._numbers[column.name]
        own, total = float(known.mean()), count + len(known)
        squares += float(((known - own) ** 2).sum()) + (own - mean) ** 2 * count * len(known) / total
        self._numbers[column.name] = total, mean + (own - mean) * len(known) / total, squares

    def encoder(self, *, classes: tuple[str, ...], matrix_columns: int = 0) -> TableEncoder:
        """Return the encoder of the rows so far."""
        columns = tuple(self._fitted(one) for one in self.schema.columns if one.kind in FEATURE_KINDS)
        return TableEncoder(
            columns=columns, table=self.schema, matrix_columns=matrix_columns, classes=classes, training_rows=self.rows
        )

    def _fitted(self, column: TableColumn) -> EncodedColumn:
        fields: dict[str, Any] = {"name": column.name, "kind": column.kind}
        if column.kind == "numeric":
            count, mean, squares = self._numbers[column.name]
            sd = math.sqrt(squares / count) if count else 0.0
            fields |= {"log": column.log, "mean": mean, "sd": sd or 1.0}
        elif column.kind == "category":
            fields |= {"categories": tuple(sorted(self._values[column.name]))}
        elif column.kind == "hashed":
            fields |= {"buckets": column.buckets}
        else:
            fields |= {"positive": column.positive}
        return EncodedColumn(**fields)


@dataclasses.dataclass(slots=True)
class RowEncoder:
    """Applies an encoder to batches of rows, and counts values that it does not know.

    Attributes:
        unseen: cells with a category that no training row has, by column.
        empty: of the last batch, bool [N, columns of the encoder]: empty cells, and those with an unseen category.
    """

    encoder: TableEncoder
    unseen: Counter[str] = dataclasses.field(default_factory=Counter)
    empty: npt.NDArray[np.bool_] = dataclasses.field(default_factory=lambda: np.zeros((0, 0), np.bool_))

    def encode(self, batch: Any, matrix: Any = None) -> Any:
        """Return the features of a batch, scipy.sparse.csr_matrix float32 [N, features].

        Args:
            matrix: the rows of the sparse matrix that belong to it, if the encoder has matrix columns.
        """
        sparse = require("scipy.sparse", extra=EXTRA)
        rows, places, values, first = [], [], [], 0
        is_empty = np.zeros((batch.num_rows, len(self.encoder.columns)), np.bool_)
        for number, column in enumerate(self.encoder.columns):
            own = self._column(batch, column)
            is_empty[:, number] = own[0] < 0
            row = np.flatnonzero((own[0] >= 0) & (own[1] != 0))
            rows.append(row)
            places.append(own[0][row] + first)
            values.append(own[1][row])
            first += len(column.features)
        self.empty = is_empty
        nothing: list[Any] = [np.zeros(0)]
        joined = [np.concatenate(parts or nothing) for parts in (values, rows, places)]
        table = sparse.csr_matrix(
            (joined[0].astype(np.float32), (joined[1].astype(np.int64), joined[2].astype(np.int64))),
            shape=(batch.num_rows, first),
        )
        return table if matrix is None else sparse.hstack([table, matrix], format="csr", dtype=np.float32)

    def _column(self, batch: Any, column: EncodedColumn) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Return the place of the only entry of each row among the column's features, -1 for none; and its value."""
        if column.kind == "numeric":
            numbers = (numbers_of(batch, column) - column.mean) / column.sd
            return -np.isnan(numbers).astype(np.int64), np.nan_to_num(numbers)
        if column.kind == "binary":
            ones = _ones(batch, column)
            return -np.isnan(ones).astype(np.int64), np.nan_to_num(ones)
        cells, values = texts_of(batch, column.name)
        places = np.array([self._place(column, value) for value in values] or [-1], np.int64)
        if column.kind == "category":
            is_unseen = np.array([bool(value) for value in values] or [False]) & (places < 0)
            self.unseen[column.name] += int(is_unseen[cells].sum())
        return places[cells], np.ones(len(cells))

    def _place(self, column: EncodedColumn, value: str | None) -> int:
        if not value:
            return -1
        if column.kind == "hashed":
            return bucket_of(value, column.buckets)
        return _places(column.categories).get(value, -1)


@functools.lru_cache(maxsize=256)
def _places(categories: tuple[str, ...]) -> Mapping[str, int]:
    return {value: place for place, value in enumerate(categories)}


def _ones(batch: Any, column: TableColumn | EncodedColumn) -> FloatArray:
    """Return a binary column as 0 and 1, float64 [N]; NaN for empty cells.

    Raises:
        UserInputError: a value is none of the two.
    """
    cells, values = texts_of(batch, column.name)
    if column.positive is None and not {value for value in values if value} <= {*TRUE, *FALSE}:
        raise UserInputError(
            f"the column '{column.name}' is not of the declared kind.",
            seen="another value than 0 and 1, N and Y, false and true",
            expected="two values, or `positive` in the schema: the value that is 1",
            do="declare `positive`, or the column as category, in the schema",
        )
    positive = TRUE if column.positive is None else (column.positive,)
    return np.array([float(value in positive) if value else math.nan for value in values] or [0.0])[cells]
