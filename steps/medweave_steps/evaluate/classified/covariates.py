"""Groups of the evaluated cases by sex, age and MMSE, from a table that no network sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.case_index import CaseIndex
from medweave_steps.io.cohort.tables import plain_name, read_table

UNKNOWN = "unknown"
_SEXES = {"f": "F", "female": "F", "m": "M", "male": "M", "o": "O", "other": "O"}
_WIDTHS = {"age": 10, "mmse": 5}
"""Width of a band, in years and in points. Bands of equal width: they are no clinical stages."""
_HIGHEST = {"mmse": 30}
"""Highest score, which the last band contains."""

Groups = Mapping[str, Mapping[str, Sequence[int]]]


def covariate_groups(paths: Sequence[Path], entries: Sequence[CaseEntry]) -> Groups:
    """Return the places of the cases of each group, by covariate and group; groups in ascending order, `unknown` last.

    Empty for tables with none of the columns: a table of groups need not have covariates.

    Args:
        paths: tables with a column that names image, case or patient, and columns sex, age (years) or mmse (0 to 30 points).
        entries: the evaluated cases.
    Raises:
        UsageError: there is no such file.
        UserInputError: a table cannot be used, names none of the cases, or one case twice with different values; or two tables
            have the same covariate. No message has a cell.
    """
    groups: dict[str, Mapping[str, Sequence[int]]] = {}
    index = _index(entries)
    for path in paths:
        for name, by_group in _groups_in(path, entries, index).items():
            if name in groups:
                raise _unusable(f"{name} in two tables")
            groups[name] = by_group
    return groups


def _groups_in(path: Path, entries: Sequence[CaseEntry], index: CaseIndex) -> Groups:
    if not path.is_file():
        raise UsageError("--covariates is not an existing file.", expected="a CSV or TSV table", do="correct the path")
    table = read_table(path)
    places = {name: place for place, name in enumerate(map(plain_name, table.columns)) if name in ("sex", *_WIDTHS)}
    if not places:
        return {}
    rows: dict[str, tuple[str, ...]] = {}
    for row in table.rows:
        values = tuple(_group_of(name, row[place]) for name, place in places.items())
        for case_id in index.cases_of(row[table.key]):
            if rows.setdefault(case_id, values) != values:
                raise _unusable(f"{case_id} in two rows with different values")
    if not rows:
        raise _unusable("no row that names an evaluated case")
    unknown = (UNKNOWN,) * len(places)
    of_case = [rows.get(entry.case_id, unknown) for entry in entries]
    return {name: _places_by_group([values[column] for values in of_case]) for column, name in enumerate(places)}


def _index(entries: Sequence[CaseEntry]) -> CaseIndex:
    index = CaseIndex()
    for entry in entries:
        is_file = entry.source_format != "dicom"
        key = "" if entry.source_format == "image" else entry.patient_key
        index.add(entry.case_id, file=entry.files[0] if is_file else "", patient_key=key)
    return index


def _group_of(covariate: str, cell: str) -> str:
    """Return the group of a value; `unknown` for a missing one and for other text."""
    if covariate == "sex":
        return _SEXES.get(cell.casefold(), UNKNOWN)
    try:
        value = float(cell.removesuffix("+"))
    except ValueError:
        return UNKNOWN
    if not math.isfinite(value) or value < 0:
        return UNKNOWN
    width, highest = _WIDTHS[covariate], _HIGHEST.get(covariate, math.inf)
    if value > highest:
        return UNKNOWN
    low = int(min(value // width * width, highest - width)) if highest < math.inf else int(value // width) * width
    return f"{low} to {low + width}" if low + width == highest else f"{low} to below {low + width}"


def _places_by_group(groups: Sequence[str]) -> Mapping[str, Sequence[int]]:
    def order(group: str) -> tuple[bool, int, str]:
        first = group.partition(" ")[0]
        return group == UNKNOWN, int(first) if first.isdecimal() else 0, group

    return {
        name: [place for place, group in enumerate(groups) if group == name] for name in sorted(set(groups), key=order)
    }


def _unusable(seen: str) -> UserInputError:
    return UserInputError(
        "the table of --covariates cannot be used.",
        seen=seen,
        expected="a column that names the image, case or patient, a column sex, age or mmse, and one row for each case or patient",
        do="correct the table, for example participants.tsv of the cohort that was classified",
    )
