"""Tables as training data: the schema of a table, as users declare it, and the encoder that is fitted to its training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.volume import TABLE_PREFIX, DataClass

ENCODER_FILE = "table_encoder.json"
"""In the folders of encoded rows and in the model folder."""
FeatureKind = Literal["numeric", "category", "hashed", "binary"]
ColumnKind = Literal["numeric", "category", "hashed", "binary", "identifier", "group", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column of a table, as its schema declares it.

    Attributes:
        name: as the header of the table has it.
        kind: numeric (z-score), category (one-hot), hashed (one-hot of buckets), binary (0 or 1), identifier (no feature), group
            (no feature; rows with equal values belong together, such as those of a patient), or target (name of the class).
        log: of a numeric column, use log(1 + x); values must be 0 or more.
        buckets: of a hashed column, number of features.
        positive: of a binary column, the value that is 1, any other is 0; None for the values 0 and 1, N and Y, false and true.
    """

    name: str
    kind: ColumnKind
    log: bool = False
    buckets: int = 64
    positive: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTarget:
    """A class that follows from a second table, the target list: whether it has the row's value of a column.

    Attributes:
        column: column of the table, of kind identifier or group.
        list_column: column of the target list with such values.
        listed, unlisted: names of the classes.
    """

    column: str
    list_column: str
    listed: str
    unlisted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The columns of a table. Every column of the table is declared; none is used by accident.

    Attributes:
        columns: in any order.
        listed_target: instead of a column of kind target.
        synthetic: True if the rows come from a generator; all results then declare it, too.
    """

    columns: tuple[TableColumn, ...]
    listed_target: ListedTarget | None = None
    synthetic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedColumn:
    """One column of features, with what was fitted on the training rows.

    Attributes:
        mean, sd: of a numeric column, after the logarithm; empty cells become the mean.
        categories: of a category column, in the order of their features; other values get zeros.
    """

    name: str
    kind: FeatureKind
    log: bool = False
    mean: float = 0.0
    sd: float = 1.0
    categories: tuple[str, ...] = ()
    buckets: int = 0
    positive: str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the column's features."""
        if self.kind == "category":
            return tuple(f"{TABLE_PREFIX}{self.name}={value}" for value in self.categories)
        if self.kind == "hashed":
            return tuple(f"{TABLE_PREFIX}{self.name}#{bucket}" for bucket in range(self.buckets))
        return (f"{TABLE_PREFIX}{self.name}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEncoder:
    """`table_encoder.json`: from the cells of a row to the input of a network. It travels with the model.

    Attributes:
        columns: columns with features, in their order.
        table: schema of the table that it was fitted to.
        matrix_columns: columns of the sparse binary matrix, whose features follow those of the table; 0 without one.
        classes: names of the classes, in the order of their numbers.
        training_rows: rows that it was fitted on.
    """

    columns: tuple[EncodedColumn, ...]
    table: TableSchema
    matrix_columns: int
    classes: tuple[str, ...]
    training_rows: int
    encoder_version: Literal[1] = 1
    data_class: DataClass = "model"

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of all features."""
        of_columns = tuple(name for column in self.columns for name in column.features)
        return of_columns + tuple(f"{TABLE_PREFIX}{number}" for number in range(self.matrix_columns))
