"""Tables of a cohort: comma- or tab-separated text with a header line, and the columns that name an image and its patient."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from medweave_steps.io.findings import FindingError, refuse

SUFFIXES = (".csv", ".tsv")
KEY_COLUMNS = (
    "image", "image_id", "image_name", "image_index", "isic_id", "dicom_id", "file", "file_name", "filename", "path", "volume",
    "case", "case_id", "participant_id", "subject_id", "subject", "patient_id", "patientid", "patient",
)  # fmt: skip
"""Columns that name the image or the case, the first of them that a table has."""
PATIENT_COLUMNS = ("patient_id", "patientid", "patient", "participant_id", "subject_id", "subject")
LESION_COLUMNS = ("lesion_id",)
_OF_CELL = re.compile(r"\.(jpe?g|png|dcm|dicom|ima|nii|nii\.gz)$", re.IGNORECASE)
_OF_FILE = re.compile(r"\.([A-Za-z]\w*|nii\.gz)$", re.IGNORECASE)  # not the last number of a UID


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a column that names the image or the case.

    Attributes:
        columns: names as in the file.
        rows: cells of each row without surrounding spaces, without empty rows.
        numbers: of the rows in messages; the header line is row 1.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    key: int
    patient: int | None
    lesion: int | None

    def column(self, place: int) -> list[str]:
        """Return the cells of one column."""
        return [row[place] for row in self.rows]


class CaseNames:
    """Finds the cases that cells of tables name: by path, file name, either without suffix, or case id."""

    def __init__(self) -> None:
        self._by_name: dict[str, set[str]] = {}
        # By the parts of their paths without suffix: cohorts have one file name in thousands of folders.
        self._by_path: dict[tuple[str, ...], set[str]] = {}
        self._by_end_of_path: dict[tuple[str, ...], set[str]] = {}

    def add(self, case: str, *, case_id: str, file: str = "") -> None:
        """Add a case.

        Args:
            case: what `cases_of` returns for it.
            file: its path in the cohort; empty for a case without a file of its own.
        """
        bare = PurePosixPath(_OF_FILE.sub("", file))
        self._by_path.setdefault(bare.parts, set()).add(case)
        for end in _ends_of(bare.parts):
            self._by_end_of_path.setdefault(end, set()).add(case)
        for name in {case_id, file, PurePosixPath(file).name, bare.name} - {""}:
            self._by_name.setdefault(name, set()).add(case)

    def cases_of(self, cell: str) -> set[str]:
        """Return the cases that a cell names.

        A cell with another suffix than the file names it, too; if it has folders, they are those of the file as far as both go:
        `p1/view.jpg` never names `p2/view.jpg`, which may show another patient.
        """
        name = cell.removeprefix("./")
        if found := self._by_name.get(name):
            return found
        parts = PurePosixPath(_OF_CELL.sub("", name)).parts
        return self._by_end_of_path.get(parts, set()).union(*(self._by_path.get(end, ()) for end in _ends_of(parts)))


def _ends_of(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return a path whole, and without its first folder, its first two, and so on."""
    return [parts[start:] for start in range(len(parts))]


def plain_name(column: str) -> str:
    """Return a column's name in lower case with underscores: `Patient ID` becomes `patient_id`."""
    return re.sub(r"[\s\-]+", "_", column.strip().lower())


def is_table(name: str) -> bool:
    """Return whether a file is named as a table."""
    return PurePosixPath(name.lower()).suffix in SUFFIXES


def read_table(path: Path) -> Table:
    """Read a table.

    Raises:
        FindingError: not text, no header, a row of another length, or no column that names the image; no message has a cell.
    """
    try:
        header, *rows = _cells(path)
    except (ValueError, csv.Error) as error:
        raise bad_table(
            "text that is not UTF-8, or no header line", "a header line, then a row for each image"
        ) from error
    names = [plain_name(column) for column in header]
    if len(set(names)) < len(names):
        raise bad_table("a column name twice", "columns with different names")
    short = [number for number, row in enumerate(rows, start=2) if row and len(row) != len(header)]
    if short:
        raise bad_table(f"row {short[0]} with another number of cells than the header line", f"{len(header)} cells")
    key = _first(names, KEY_COLUMNS)
    if key is None:
        raise bad_table("no column that names the image", f"a column {', '.join(KEY_COLUMNS[:4])} or case_id")
    return Table(
        columns=tuple(column.strip() for column in header),
        rows=tuple(tuple(cell.strip() for cell in row) for row in rows if row),
        numbers=tuple(number for number, row in enumerate(rows, start=2) if row),
        key=key,
        patient=_first(names, PATIENT_COLUMNS),
        lesion=_first(names, LESION_COLUMNS),
    )


def find_tables(cohort: Path, names: Iterable[str]) -> dict[str, Table]:
    """Return the readable tables of a cohort by their paths; files that are no such tables are left out."""
    tables = {}
    for name in filter(is_table, names):
        try:
            tables[name] = read_table(cohort / name)
        except FindingError:
            continue
    return tables


def identities_of(tables: Iterable[Table], names: CaseNames, cases: Collection[str]) -> dict[str, str]:
    """Return whose images cases are: the patient that a table names (`ID` and a line break), else the lesion (`lesion ID`).

    The first table that names a case decides. A lesion of which another image has a patient is that patient's.

    Args:
        cases: those whose patient no header names; the result has only those that tables name.
    """
    ordered = list(tables)
    patients = {
        case: f"{cell}\n"
        for case, cell in _cell_of_cases([(one, one.patient) for one in ordered], names, cases).items()
    }
    lesions = _cell_of_cases([(one, one.lesion) for one in ordered], names, cases)
    by_lesion = {lesions[case]: identity for case, identity in sorted(patients.items()) if case in lesions}
    return {case: by_lesion.get(cell, f"lesion {cell}") for case, cell in lesions.items()} | patients


def _cell_of_cases(
    columns: Sequence[tuple[Table, int | None]], names: CaseNames, cases: Collection[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    wanted = set(cases)
    for table, place in reversed(columns):  # the first table that names a case decides
        for row in table.rows if place is not None else ():
            if place is not None and row[place]:
                found |= dict.fromkeys(names.cases_of(row[table.key]) & wanted, row[place])
    return found


def _cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        stream.seek(0)
        delimiter = max("\t,;", key=first.count) if path.suffix.lower() == ".csv" else "\t"
        return list(csv.reader(stream, delimiter=delimiter, strict=True))


def _first(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def bad_table(seen: str, expected: str) -> FindingError:
    """Return the error about a table that cannot be used."""
    return refuse(
        "bad-table", "the table of targets cannot be used.", seen=seen, expected=expected,
        do="correct the table, or name another one with --targets",
    )  # fmt: skip
