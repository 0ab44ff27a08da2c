"""Tables of a BIDS-like folder: participants.tsv, and the label tables `*dseg.tsv` of its masks."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import HIGHEST_VALUE, Label
from medweave_steps.io.findings import FindingError, notice, refuse

PARTICIPANTS_FILE = "participants.tsv"
LABEL_TABLE = "dseg.tsv"


def read_participants(cohort: Path, subjects: Collection[str]) -> tuple[set[str] | None, list[Finding]]:
    """Return the subjects of participants.tsv without `sub-`, None if there is no such file; and notices.

    Args:
        subjects: those with scans.
    Raises:
        FindingError: not a table with the column participant_id, or a participant twice.
    """
    path = cohort / PARTICIPANTS_FILE
    if not path.is_file():
        return None, []
    ids = [row[0].removeprefix("sub-") for row in read_columns(path, ("participant_id",), PARTICIPANTS_FILE)]
    if len(set(ids)) < len(ids):
        raise _bad_table(PARTICIPANTS_FILE, f"{len(ids) - len(set(ids))} participants twice", "each participant once")
    without_scans = len(set(ids) - set(subjects))
    if not without_scans:
        return set(ids), []
    what = f"{without_scans} of {len(ids)} participants of participants.tsv have no scans in anat/."
    return set(ids), [notice("participants-without-scans", what, do="add the scans if they belong to the cohort")]


def read_mask_labels(cohort: Path, masks: Sequence[str], everything: Iterable[str]) -> tuple[Label, ...]:
    """Return the labels that the tables `*dseg.tsv` of the masks' derivatives declare; empty if there are none.

    Args:
        masks: paths of the masks in use.
        everything: all files of the cohort.
    Raises:
        FindingError: not a table with the columns index and name, an index above 255, or two names for one index.
    """
    folders = {PurePosixPath(mask).parts[:2] for mask in masks}
    tables = [name for name in everything if name.endswith(LABEL_TABLE) and PurePosixPath(name).parts[:2] in folders]
    names: dict[int, str] = {}
    for table in tables:
        for index, name in read_columns(cohort / table, ("index", "name"), f"a table *{LABEL_TABLE}"):
            if not (index.isdecimal() and int(index) <= HIGHEST_VALUE and name):
                seen = f"index {index}" if index.isdecimal() else "an index that is no whole number"
                raise _bad_table(f"a table *{LABEL_TABLE}", seen, f"index 0 to {HIGHEST_VALUE} and a name")
            if names.setdefault(int(index), name) != name:
                raise _bad_table(
                    f"a table *{LABEL_TABLE}", f"two names for index {index}", "one name per index in all tables"
                )
    return tuple(Label(value=value, name=names[value]) for value in sorted(names) if value)


def read_columns(path: Path, columns: Sequence[str], what: str) -> list[tuple[str, ...]]:
    """Return the values of some columns of a table with a header line.

    Args:
        what: the table in messages.
    Raises:
        FindingError: not such a table; the message has no value of it.
    """
    try:
        header, *rows = _read(path)
        places = [header.index(column) for column in columns]
        return [tuple(row[place].strip() for place in places) for row in rows if any(row)]
    except (ValueError, IndexError, csv.Error) as error:
        raise _bad_table(
            what, "no such columns, or a row that is too short", f"columns {', '.join(columns)}"
        ) from error


def column_names(path: Path, what: str) -> list[str]:
    """Return the names of the columns of a table.

    Raises:
        FindingError: not a table.
    """
    try:
        return _read(path)[0]
    except (ValueError, IndexError, csv.Error) as error:
        raise _bad_table(what, "no header line", "columns with names") from error


def _read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def _bad_table(what: str, seen: str, expected: str) -> FindingError:
    return refuse(
        "bad-table", f"{what} cannot be used.", seen=seen, expected=f"text separated by tabs, UTF-8: {expected}",
        do="correct the table, or remove it",
    )  # fmt: skip
