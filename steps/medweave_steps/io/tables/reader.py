"""Reading of tables in batches of rows: CSV, TSV and Parquet by pyarrow. A table is never in memory as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require

EXTRA = "tables"
BATCH_ROWS = 65_536
BLOCK_BYTES = 16 << 20
CellType = Literal["number", "text"]
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "\t"}
_EMPTY = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """One table on disk.

    Attributes:
        path: of a CSV (.csv), tab-separated (.tsv, .tab, .txt; each also .gz) or Parquet (.parquet) file.
    """

    path: Path

    @property
    def is_parquet(self) -> bool:
        """Return True for a Parquet file."""
        return self.path.suffix == ".parquet"

    def column_names(self) -> tuple[str, ...]:
        """Return the names of the columns.

        Raises:
            UserInputError: the file cannot be read, or a name occurs twice.
        """
        try:
            if self.is_parquet:
                names = tuple(require("pyarrow.parquet", extra=EXTRA).read_schema(self.path).names)
            else:
                names = tuple(self._open_csv({}).schema.names)
        except Exception as error:
            raise self._unreadable(error) from error
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserInputError(
                "the table has a column twice.",
                seen=f"{twice[0]!r} twice in the header of {self.path.name}",
                expected="different names",
                do="rename or remove one of the columns",
            )
        return names

    def batches(self, types: Mapping[str, CellType]) -> Iterator[Any]:
        """Yield pyarrow.RecordBatch of at most `BATCH_ROWS` rows: float64 for numbers, string for text; empty cells are null.

        Args:
            types: the columns to read.
        Raises:
            UserInputError: the file cannot be read, or a column of numbers has text; names the column, not the value.
        """
        try:
            batches = self._parquet(types) if self.is_parquet else self._open_csv(types)
            for batch in batches:
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)
        except UserInputError:
            raise
        except Exception as error:
            raise self._unreadable(error, tuple(types)) from error

    def _open_csv(self, types: Mapping[str, CellType]) -> Any:
        arrow, csv = require("pyarrow", extra=EXTRA), require("pyarrow.csv", extra=EXTRA)
        suffix = Path(self.path.stem).suffix if self.path.suffix == ".gz" else self.path.suffix
        kinds = {"number": arrow.float64(), "text": arrow.string()}
        return csv.open_csv(
            str(self.path),
            read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=csv.ParseOptions(delimiter=_SEPARATORS[suffix]),
            convert_options=csv.ConvertOptions(
                include_columns=list(types) or None,
                column_types={name: kinds[kind] for name, kind in types.items()},
                null_values=list(_EMPTY),
                strings_can_be_null=True,
            ),
        )

    def _parquet(self, types: Mapping[str, CellType]) -> Iterator[Any]:
        arrow, parquet = require("pyarrow", extra=EXTRA), require("pyarrow.parquet", extra=EXTRA)
        kinds = {"number": arrow.float64(), "text": arrow.string()}
        with parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(types)):
                columns = {name: self._cast(batch.column(name), kinds[kind], name) for name, kind in types.items()}
                yield arrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _cast(self, column: Any, kind: Any, name: str) -> Any:
        arrow = require("pyarrow", extra=EXTRA)
        try:
            return column.cast(kind)
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError) as error:
            raise self._other_type(name, "") from error

    def _other_type(self, name: str, row: str) -> UserInputError:
        return UserInputError(
            f"the column '{name}' is not of the declared kind.",
            seen=f"a value that is not a number{row} in {self.path.name}",
            expected="numbers, or empty cells",
            do="declare the column as category or hashed in the schema, or correct the table",
        )

    def _unreadable(self, error: Exception, names: Sequence[str] = ()) -> UserInputError:
        text = " ".join(str(error).split())
        # pyarrow's message has the value, which may be a patient's; only column and row are repeated.
        conversion = re.search(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to double", text)
        if conversion and names:
            row = f", line {conversion[2]}" if conversion[2] else ""
            return self._other_type(self.column_names()[int(conversion[1])], row)
        line = re.search(r"Row #(\d+): Expected \d+ columns, got \d+|Expected \d+ columns, got \d+", text)
        if isinstance(error, KeyError):
            seen = f"the suffix {self.path.suffix or 'none'}"
        else:
            seen = line[0] if line else type(error).__name__
        return UserInputError(
            "the table cannot be read.",
            seen=f"{self.path.name}: {seen}",
            expected=f"a table with a header line, of the type {', '.join(_SEPARATORS)} (also .gz) or .parquet",
            do="correct the file or its suffix",
        )


def read_matrix(path: Path) -> Any:
    """Return a sparse binary matrix that `scipy.sparse.save_npz` wrote, scipy.sparse.csr_matrix float32 [rows, columns].

    Raises:
        UserInputError: the file cannot be read, or has other values than 0 and 1.
    """
    sparse = require("scipy.sparse", extra=EXTRA)
    try:
        matrix = sparse.load_npz(path).tocsr().astype("float32")
    except Exception as error:
        raise UserInputError(
            "the matrix cannot be read.",
            seen=f"{path.name}: {type(error).__name__}",
            expected="a sparse matrix (.npz) as scipy.sparse.save_npz writes it",
        ) from error
    matrix.sum_duplicates()
    if not (matrix.data == 1).all():
        raise UserInputError(
            "the matrix is not binary.",
            seen=f"other values than 0 and 1 in {path.name}",
            expected="1 where a row has a code, else 0",
            do="write the numbers as columns of the table instead",
        )
    return matrix
