"""REFERENCE.csv: the rhythm of each recording, in lines `record,label` without a header line."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from medweave_core.contracts.classes import ImageClass
from medweave_steps.io.cohort.tables import bad_table

REFERENCE_FILE = "REFERENCE.csv"
RHYTHMS = (ImageClass(name="N"), ImageClass(name="A"), ImageClass(name="O"), ImageClass(name="~", is_scored=False))
"""Labels of the PhysioNet/CinC Challenge 2017: normal, atrial fibrillation, other rhythm, and noisy, which its score leaves out.

Source: Clifford et al. 2017, Computing in Cardiology 44, doi:10.22489/CinC.2017.065-469.
"""

Rows = list[tuple[int, str, str]]
"""Line, record and label."""


def is_reference(name: str) -> bool:
    """Return whether a file is named as a table of references, such as REFERENCE-v3.csv."""
    return PurePosixPath(name).match("REFERENCE*.csv")


def choose_reference(names: Sequence[str]) -> str | None:
    """Return the table of references of a cohort: REFERENCE.csv, else the only one of another name; None if there is none.

    Raises:
        FindingError: there are several.
    """
    tables = [name for name in names if is_reference(name)]
    exact = [name for name in tables if PurePosixPath(name).name == REFERENCE_FILE]
    tables = exact or tables
    if len(tables) > 1:
        raise bad_table(
            f"{len(tables)} tables of references", f"one {REFERENCE_FILE}, or one table named with --targets"
        )
    return tables[0] if tables else None


def read_reference(path: Path) -> Rows:
    """Read a table of references; an empty label is none of the known labels.

    Raises:
        FindingError: not text, or a row that has not two cells; no message has a cell.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = [(number, row) for number, row in enumerate(csv.reader(stream, strict=True), start=1) if row]
    except (ValueError, csv.Error) as error:
        raise bad_table("text that is not UTF-8 CSV", "lines of record and label") from error
    wrong = [number for number, row in rows if len(row) != 2]
    if wrong:
        raise bad_table(f"row {wrong[0]} with another number of cells", "two cells: record and label")
    return [(number, row[0].strip(), row[1].strip()) for number, row in rows]


def write_reference(path: Path, labels: Mapping[str, str]) -> None:
    """Write the label of each record."""
    path.write_text("".join(f"{record},{label}\n" for record, label in labels.items()), encoding="ascii")
