"""Reads the table of measurements: one value per row, with columns for the value, its group and its patient."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medweave_core.documents.closest_match import closest
from medweave_core.errors import UserInputError

MISSING_SHOWN = 5
"""Numbers of rows that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of the columns that are read.

    Attributes:
        patient: empty for independent values.
        by: column whose values are analyzed separately; empty without one.
    """

    response: str
    factor: str
    patient: str = ""
    by: str = ""

    @property
    def names(self) -> list[str]:
        """Return the names of the columns in use."""
        return [name for name in (self.response, self.factor, self.patient, self.by) if name]


@dataclass(slots=True, kw_only=True)
class Measurements:
    """The values of one analysis by group; a group has a value for each row, in their order.

    Attributes:
        values: in the unit of the response.
        patients: patient of each value; empty names without a column of patients.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    patients: dict[str, list[str]] = field(default_factory=dict)

    def add(self, group: str, value: float, patient: str) -> None:
        """Add the value of one row."""
        self.values.setdefault(group, []).append(value)
        self.patients.setdefault(group, []).append(patient)

    @property
    def groups(self) -> list[str]:
        """Return the names of the groups: numbers in ascending order, other names in the order of the table."""
        return in_order(list(self.values))


def read_measurements(path: Path, columns: Columns) -> dict[str, Measurements]:
    """Return the measurements by the value of the column `by`; the key is empty without such a column.

    Raises:
        UserInputError: the file is not a table, lacks a column, or has a value that is not a finite number.
    """
    return measurements_of(_rows(path, columns), columns)


def measurements_of(rows: Iterable[Mapping[str, str]], columns: Columns) -> dict[str, Measurements]:
    """Return the measurements by the value of the column `by`; the key is empty without such a column.

    Args:
        rows: cells of each row by column; the first row is line 2 of its table.
    Raises:
        UserInputError: there are no rows, or one has a value that is not a finite number.
    """
    unusable: list[int] = []
    by_name: dict[str, Measurements] = {}
    for number, row in enumerate(rows, start=2):
        value = _number(row[columns.response])
        if value is None or not all(row[name] for name in columns.names):
            unusable.append(number)
            continue
        name = row[columns.by] if columns.by else ""
        patient = row[columns.patient] if columns.patient else ""
        by_name.setdefault(name, Measurements()).add(row[columns.factor], value, patient)
    if unusable:
        raise _unusable_rows(unusable, columns)
    if not by_name:
        raise _bad_table("no rows below the header", "one measurement in each row")
    return {name: by_name[name] for name in in_order(list(by_name))}


def check_columns(header: Sequence[str], columns: Columns) -> None:
    """Check that each column to read is there once.

    Raises:
        UserInputError: it is not.
    """
    for name in columns.names:
        if header.count(name) != 1:
            raise _bad_table(
                f"{header.count(name) or 'no'} columns named '{name}'",
                f"one column with this name; the columns are {', '.join(header)}",
                do=closest(name, header),
            )


def in_order(names: Sequence[str]) -> list[str]:
    """Return names in ascending order if all are numbers, else as they are."""
    numbers = {name: _number(name) for name in names}
    if any(number is None for number in numbers.values()):
        return list(names)
    return sorted(names, key=lambda name: numbers[name] or 0.0)


def _number(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _rows(path: Path, columns: Columns) -> Iterator[Mapping[str, str]]:
    """Yield the cells of each row by column; missing cells are empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        header, *lines = csv.reader(text.splitlines(), delimiter=_delimiter(text, path), strict=True)
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        raise _bad_table(type(error).__name__, "CSV or TSV in UTF-8, with a header line") from error
    header = [name.strip() for name in header]
    check_columns(header, columns)
    for line in lines:
        if any(line):
            cells = [*(cell.strip() for cell in line), *[""] * (len(header) - len(line))]
            yield dict(zip(header, cells, strict=False))


def _delimiter(text: str, path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else max(",\t;", key=text.partition("\n")[0].count)


def _unusable_rows(numbers: Sequence[int], columns: Columns) -> UserInputError:
    listed = ", ".join(map(str, numbers[:MISSING_SHOWN])) + (", …" if len(numbers) > MISSING_SHOWN else "")
    return UserInputError(
        f"the table of measurements has {len(numbers)} row{'s' * (len(numbers) > 1)} without a usable value.",
        seen=f"line {listed}",
        expected=f"a finite number in column '{columns.response}', and a value in each of {', '.join(columns.names[1:])}",
        do="complete these rows or remove them: missing values are not replaced",
    )


def _bad_table(seen: str, expected: str, *, do: str = "") -> UserInputError:
    return UserInputError(
        "the table of measurements cannot be used.",
        seen=seen,
        expected=expected,
        do=do or "correct the table or the names of the columns",
    )
