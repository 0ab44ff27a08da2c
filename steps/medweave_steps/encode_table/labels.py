"""Classes and groups of all rows: the first pass over the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.tables import TableSchema
from medweave_core.errors import UserInputError
from medweave_steps.io.tables.encoder import texts_of
from medweave_steps.io.tables.reader import TableFile
from medweave_steps.io.tables.row_block import NO_CLASS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowLabels:
    """Classes and groups of the rows of all tables.

    Attributes:
        classes: names of the classes.
        targets: int16 [rows], number of the class; `NO_CLASS` where it is not known.
        groups: int64 [rows], number of the group; the row itself without a group column, and where its cell is empty.
    """

    classes: tuple[str, ...]
    targets: npt.NDArray[np.int16]
    groups: npt.NDArray[np.int64]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of rows of each class."""
        return {name: int((self.targets == number).sum()) for number, name in enumerate(self.classes)}


def read_labels(
    tables: Sequence[TableFile],
    schema: TableSchema,
    *,
    target_list: Path | None,
    classes: tuple[str, ...] | None = None,
) -> RowLabels:
    """Return classes and groups of all rows.

    Args:
        target_list: table of the listed class, for a schema with `listed_target`; None leaves the classes unknown.
        classes: of a model; None for those of the tables, in alphabetical order.
    Raises:
        UserInputError: a table cannot be read, or has classes that the model does not have.
    """
    kinds = {column.kind: column.name for column in schema.columns}
    listed, names = schema.listed_target, tables[0].column_names()
    by_column, by_group = kinds.get("target"), kinds.get("group")
    if listed is not None:
        by_column = listed.column if target_list else None
    wanted = [name for name in dict.fromkeys((by_column, by_group)) if name in names]
    of_list = _listed_values(target_list, listed.list_column) if listed and target_list else None
    targets, groups, first = [], [], 0
    numbers: dict[str, int] = {}
    place_of_class = {name: number for number, name in enumerate(classes or ())}
    for batch in (batch for table in tables for batch in table.batches(dict.fromkeys(wanted or names[:1], "text"))):
        own_targets = np.full(batch.num_rows, NO_CLASS, np.int64)
        if by_column in wanted:
            cells, values = texts_of(batch, str(by_column))
            if of_list is not None and listed is not None:
                values = [listed.listed if value in of_list else listed.unlisted for value in values]
            own_targets = _numbers(values, place_of_class, fixed=classes)[cells]
        own_groups = np.arange(first, first + batch.num_rows)
        if by_group in wanted:
            cells, values = texts_of(batch, str(by_group))
            of_group = _numbers(values, numbers)[cells]
            own_groups = np.where(of_group == NO_CLASS, -2 - own_groups, of_group)
        targets.append(own_targets)
        groups.append(own_groups)
        first += batch.num_rows
    all_targets = np.concatenate(targets or [np.zeros(0, np.int64)]).astype(np.int16)
    return _ordered(all_targets, np.concatenate(groups or [np.zeros(0, np.int64)]), place_of_class, classes)


def _ordered(
    targets: npt.NDArray[np.int16],
    groups: npt.NDArray[np.int64],
    places: dict[str, int],
    classes: tuple[str, ...] | None,
) -> RowLabels:
    """Return the labels with the classes in alphabetical order, unless they are those of a model; groups count from 0."""
    if classes is None:
        classes = tuple(sorted(places))
        renumbered = np.array([*(classes.index(name) for name in places), NO_CLASS], np.int16)
        targets = renumbered[targets]
    return RowLabels(
        classes=classes, targets=targets, groups=np.unique(groups, return_inverse=True)[1].astype(np.int64)
    )


def _numbers(
    values: Sequence[str | None], known: dict[str, int], *, fixed: tuple[str, ...] | None = None
) -> npt.NDArray[np.int64]:
    """Return the number of each value, which new values get; `NO_CLASS` for empty cells."""
    unknown = [value for value in values if value and value not in known]
    if fixed is not None and unknown:
        raise UserInputError(
            "the table has a class that the model does not have.",
            seen="other values in the target column",
            expected=", ".join(fixed),
            do="correct the target column of the table, or train a model with this class",
        )
    for value in unknown:
        known.setdefault(str(value), len(known))
    return np.array([known[value] if value else NO_CLASS for value in values] or [NO_CLASS], np.int64)


def _listed_values(path: Path, column: str) -> set[str]:
    table = TableFile(path=path)
    names = table.column_names()
    if column not in names:
        raise UserInputError(
            f"the target list has no column '{column}'.",
            seen=f"columns {', '.join(names[:20])} in {path.name}",
            expected=f"the column {column} (listed_target of the schema)",
            do="correct list_column in the schema, or --target-list",
        )
    values: set[str] = set()
    for batch in table.batches({column: "text"}):
        values.update(value for value in texts_of(batch, column)[1] if value)
    return values


def check_classes_known(labels: RowLabels) -> None:
    """Check that there is something to learn.

    Raises:
        UserInputError: fewer than two classes have a row.
    """
    present: dict[str, Any] = {name: count for name, count in labels.counts.items() if count}
    if len(present) < 2:
        raise UserInputError(
            "the table has only one class." if present else "the table has no row with a class.",
            seen=", ".join(f"{count} rows of {name}" for name, count in present.items())
            or f"{len(labels.targets)} rows",
            expected="rows of at least two classes",
            do="correct the target column of the schema, or --target-list, of which some values must be in the table",
        )
