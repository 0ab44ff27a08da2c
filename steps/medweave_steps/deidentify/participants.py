"""participants.tsv in the output: subjects under pseudonyms, and columns of numbers or of few words that the user names."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError
from medweave_steps.deidentify.characteristics import clean_age, clean_number, clean_sex
from medweave_steps.deidentify.describe import card_classes, read_description
from medweave_steps.deidentify.identifiers import Identifiers
from medweave_steps.io.cohort.bids_tables import PARTICIPANTS_FILE, column_names, read_columns
from medweave_steps.io.cohort.files import CARD_FILE
from medweave_steps.io.findings import FindingError, refuse

Kind = Literal["age", "number", "word"]

_KEY = "participant_id"
# Columns that --retain-patient-characteristics retains: numbers, or words of a list; other values become n/a.
_NUMBERS = ("age", "weight", "height")
_MISSING = "n/a"
_MISSING_WORDS = {"", "n/a", "na", "nan"}
_FIRST_YEAR = 1000  # whole numbers from here may be years, dates or identifiers
_MOST_NUMBERED = 30  # more subjects, each with another whole number: a running number
_MOST_WORDS, _LONGEST_WORD = 10, 32
_WORD = re.compile(rf"(?!.*\d{{4}})[A-Za-z][A-Za-z0-9 +/_.-]{{0,{_LONGEST_WORD - 1}}}")


def kinds_of_columns(cohort: Path, columns: Sequence[str]) -> dict[str, Kind]:
    """Return what the columns of `--keep-columns` have; empty without columns.

    Raises:
        UsageError: no participants.tsv, or no such column.
        FindingError: values of a column may be free text, dates or identifiers; the message has no value.
    """
    if not columns:
        return {}
    path = cohort / PARTICIPANTS_FILE
    known = column_names(path, PARTICIPANTS_FILE) if path.is_file() else []
    for name in columns:
        if name not in known or name == _KEY:
            raise UsageError(
                f"--keep-columns names no column of {PARTICIPANTS_FILE} that can be kept.",
                seen=f"'{name}'" if known else f"no {PARTICIPANTS_FILE} in --cohort",
                expected=f"columns of {PARTICIPANTS_FILE} besides {_KEY}",
                do=closest(name, [one for one in known if one != _KEY]) or "correct the name",
            )
    rows = read_columns(path, (_KEY, *columns), PARTICIPANTS_FILE)
    names = Identifiers(row[0].removeprefix("sub-") for row in rows)
    declared = {one.name for one in card_classes(read_description(cohort / CARD_FILE))}
    return {
        column: _kind_of(column, [(row[0], row[place]) for row in rows], names, declared)
        for place, column in enumerate(columns, start=1)
    }


def _kind_of(column: str, cells: Sequence[tuple[str, str]], names: Identifiers, declared: Collection[str]) -> Kind:
    """Return the kind of a column.

    Args:
        cells: subject and value.
        names: of the subjects.
        declared: class names of the cohort card.
    Raises:
        FindingError: the column may identify a subject.
    """
    present = [(subject, value) for subject, value in cells if value.casefold() not in _MISSING_WORDS]
    numbers = [clean_number(value) for _, value in present]
    if all(number is not None for number in numbers):
        _check_numbers(column, [float(number) for number in numbers if number is not None])
        return "age" if "age" in re.split(r"[\W_]+", column.casefold()) else "number"
    _check_words(column, present, names, declared)
    return "word"


def _check_numbers(column: str, values: Sequence[float]) -> None:
    whole = [value for value in values if value.is_integer()]
    large = sum(abs(value) >= _FIRST_YEAR for value in whole)
    is_numbered = len(whole) == len(values) == len(set(values)) > _MOST_NUMBERED
    if large or is_numbered:
        seen = f"whole numbers of {_FIRST_YEAR} or more: {large}" if large else "another whole number for each subject"
        raise _not_kept(column, seen)


def _check_words(
    column: str, present: Sequence[tuple[str, str]], names: Identifiers, declared: Collection[str]
) -> None:
    subjects: dict[str, set[str]] = {}
    for subject, value in present:
        subjects.setdefault(value, set()).add(subject)
    counts = {
        f"{len(subjects)} different words": len(subjects) > _MOST_WORDS,
        "words of one subject only": any(len(own) == 1 and word not in declared for word, own in subjects.items()),
        "dates, numbers or long text": not all(_WORD.fullmatch(word) for word in subjects),
        "names of subjects": any(map(names.in_text, subjects)),
    }
    wrong = [what for what, is_wrong in counts.items() if is_wrong]
    if wrong:
        raise _not_kept(column, ", ".join(wrong))


def _not_kept(column: str, seen: str) -> FindingError:
    return refuse(
        "identifying-column",
        f"column '{column}' of {PARTICIPANTS_FILE} may identify subjects and cannot be kept.",
        seen=seen,
        expected=f"numbers (whole ones below {_FIRST_YEAR}), or at most {_MOST_WORDS} short words that two or more subjects have "
        f"each, or that 'classes' of {CARD_FILE} declares",
        do="leave the column out of --keep-columns, or replace its values by groups",
    )


def write_participants(
    source: Path, output: Path, subjects: Mapping[str, str], kinds: Mapping[str, Kind], *, retain: bool
) -> list[str]:
    """Write participants.tsv with the subjects of the output, sorted by their new names.

    Args:
        source, output: folders.
        subjects: new name of each written subject, by its names in the column participant_id.
        kinds: columns of `--keep-columns`.
        retain: keep age, weight, height and sex.
    Returns:
        a notice about columns that were dropped.
    """
    path = source / PARTICIPANTS_FILE
    columns = column_names(path, PARTICIPANTS_FILE)
    kept = [name for name in columns if name in kinds or (retain and name in (*_NUMBERS, "sex"))]
    rows = []
    for subject, *values in read_columns(path, (_KEY, *kept), PARTICIPANTS_FILE):
        if subject in subjects:
            cells = (_clean(name, kinds.get(name), value) for name, value in zip(kept, values, strict=True))
            rows.append([subjects[subject], *cells])
    write_table(output / PARTICIPANTS_FILE, [[_KEY, *kept], *sorted(rows)])
    num_dropped = len(columns) - len(kept) - 1
    if not num_dropped:
        return []
    what = f"{num_dropped} {'column' if num_dropped == 1 else 'columns'} of {PARTICIPANTS_FILE} not written; "
    advice = "" if retain else " (--retain-patient-characteristics keeps age, sex, weight and height)"
    return [f"{what}retained: {', '.join([_KEY, *kept])}{advice}."]


def _clean(column: str, kind: Kind | None, value: str) -> str:
    """Return a value of participants.tsv; `n/a` for a missing one, and for text where the column has numbers.

    Args:
        kind: of a column of `--keep-columns`; None for a characteristic that is retained.
    """
    if kind == "word":
        return _MISSING if value.casefold() in _MISSING_WORDS else value
    by_name: dict[str, Callable[[str], str | None]] = {"sex": clean_sex, "age": clean_age}
    clean = {"age": clean_age, "number": clean_number}[kind] if kind else by_name.get(column, clean_number)
    return clean(value) or _MISSING


def write_table(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write a table separated by tabs."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n").writerows(rows)
