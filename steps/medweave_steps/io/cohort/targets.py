"""Targets of a classification: what a table says about the class of each image or volume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass, check_classes
from medweave_core.contracts.cohort import Finding
from medweave_steps.io.cohort.documents import bad_json
from medweave_steps.io.cohort.files import CARD_FILE
from medweave_steps.io.cohort.tables import LESION_COLUMNS, PATIENT_COLUMNS, Table, bad_table, plain_name
from medweave_steps.io.findings import first_of, notice

CLASS_COLUMNS = ("class", "class_name", "label", "diagnosis", "dx", "target", "category")
PARTICIPANT_COLUMN, GROUP_COLUMN = "participant_id", "group"
"""Of participants.tsv of BIDS, whose groups are classes unless a column of `CLASS_COLUMNS` has them."""
FINDINGS_COLUMN = "finding_labels"
NO_FINDING = "No Finding"
MOST_CLASSES = 1000

# Columns of the public tables that describe an image and are no target.
_ABOUT_THE_IMAGE = {
    *PATIENT_COLUMNS, *LESION_COLUMNS, "age", "age_approx", "sex", "gender", "patient_age", "patient_gender", "patient_sex",
    "anatom_site_general", "anatom_site_general_challenge", "localization", "dx_type", "view_position", "follow_up_#", "study_id",
    "dataset", "score_weight", "validation_weight",
}  # fmt: skip
_ZERO_ONE = {"0": False, "0.0": False, "1": True, "1.0": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """One row of a table of targets.

    Attributes:
        number: line of the table; the header is line 1.
        key: what names the image or the case.
        classes: None where the row does not say: no class of an exclusive target, or an empty cell of findings.
    """

    number: int
    key: str
    classes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The content of a table of targets.

    Attributes:
        classes: names, in the order of the columns, or sorted where they are cells.
        rule: how the table was read, in words.
        findings: notices about classes and rows that were left out.
    """

    classes: tuple[str, ...]
    is_multi_label: bool
    rows: tuple[TargetRow, ...]
    rule: str
    findings: tuple[Finding, ...] = ()


Form = Literal["finding labels", "class column", "one-hot"]


def form_of(table: Table) -> Form | None:
    """Return the form of a table of targets; None for a table without targets."""
    form, _ = target_columns(table)
    return form


def target_columns(table: Table) -> tuple[Form | None, list[int]]:
    """Return the form of a table and the places of the columns that have targets; None and no place without targets."""
    names = [plain_name(column) for column in table.columns]
    if FINDINGS_COLUMN in names:
        return "finding labels", [names.index(FINDINGS_COLUMN)]
    if of_classes := [place for place, name in enumerate(names) if name in CLASS_COLUMNS]:
        return "class column", of_classes
    if PARTICIPANT_COLUMN in names and GROUP_COLUMN in names:
        return "class column", [names.index(GROUP_COLUMN)]
    places = [place for place in _unknown_columns(table) if _is_zero_one(table, place)]
    return ("one-hot", places) if len(places) > 1 and not _other_columns(table) else (None, [])


def read_targets(table: Table) -> Targets:
    """Return the targets of a table.

    Raises:
        FindingError: the table has no targets, several columns of classes, or too many classes; no message has a cell.
    """
    form, places = target_columns(table)
    if form == "finding labels":
        targets = _finding_labels(table, places)
    elif form == "class column":
        targets = _class_column(table, places)
    elif form == "one-hot":
        targets = _one_hot(table, places)
    else:
        others = [table.columns[place] for place in _other_columns(table)]
        raise bad_table(
            f"no targets in columns {first_of(table.columns)}"
            + (f"; cells other than 0 and 1 in {first_of(others)}" if others else ""),
            f"a column 'Finding Labels' (labels joined by |), a column of classes ({', '.join(CLASS_COLUMNS)}; with "
            f"{PARTICIPANT_COLUMN}, {GROUP_COLUMN}), or two or more columns of 0 and 1",
        )
    if not 2 - targets.is_multi_label <= len(targets.classes) <= MOST_CLASSES:
        raise bad_table(f"{len(targets.classes)} classes", f"2 to {MOST_CLASSES} classes")
    return targets


def declared_classes(card: Mapping[str, Any]) -> tuple[ImageClass, ...]:
    """Return the classes that the cohort card declares, with their codes.

    Raises:
        UserInputError: another form, or a name twice.
    """
    declared = card.get("classes", [])
    if not isinstance(declared, list):
        raise bad_json("the cohort card", CARD_FILE, "classes that are no list")
    items = [{"name": item} if isinstance(item, str) else item for item in declared]
    classes = tuple(codec.from_json(ImageClass, item, where="classes of the cohort card") for item in items)
    check_classes(classes)
    return classes


def _is_zero_one(table: Table, place: int) -> bool:
    return all(cell in _ZERO_ONE for cell in table.column(place))


def _other_columns(table: Table) -> list[int]:
    return [place for place in _unknown_columns(table) if not _is_zero_one(table, place)]


def _unknown_columns(table: Table) -> list[int]:
    return [
        place
        for place, column in enumerate(table.columns)
        if place != table.key and plain_name(column) not in _ABOUT_THE_IMAGE
    ]


def _one_hot(table: Table, places: Sequence[int]) -> Targets:
    used = [place for place in places if any(_ZERO_ONE[cell] for cell in table.column(place))]
    unused = [table.columns[place] for place in places if place not in used]
    classes = tuple(table.columns[place] for place in used)
    found = [tuple(table.columns[place] for place in used if _ZERO_ONE[row[place]]) for row in table.rows]
    is_multi_label = any(len(names) > 1 for names in found)
    findings = []
    if unused:
        what = f"{len(unused)} of {len(places)} classes of the table of targets have no case and are left out."
        findings.append(notice("class-without-case", what, seen=first_of(unused)))
    kind = "any number of classes for each image" if is_multi_label else "one class for each image"
    return _targets(
        table,
        classes,
        [names if names or is_multi_label else None for names in found],
        is_multi_label=is_multi_label,
        rule=f"columns of 0 and 1 ({first_of(classes)}): {kind}",
        findings=tuple(findings),
    )


def _finding_labels(table: Table, places: Sequence[int]) -> Targets:
    (place,) = places
    found = [_split(cell) for cell in table.column(place)]
    return _targets(
        table,
        tuple(sorted({name for names in found for name in names or ()})),
        found,
        is_multi_label=True,
        rule=f"column '{table.columns[place]}', labels joined by |, '{NO_FINDING}' for none of them: any number of classes for "
        "each image",
    )


def _split(cell: str) -> tuple[str, ...] | None:
    """Return the labels of a cell; None for an empty one, which may as well mean that the image was not read."""
    if not cell.strip("| "):
        return None
    names = dict.fromkeys(name.strip() for name in cell.split("|"))
    return tuple(name for name in names if name and name != NO_FINDING)


def _class_column(table: Table, places: Sequence[int]) -> Targets:
    if len(places) > 1:
        columns = ", ".join(table.columns[place] for place in places)
        raise bad_table(f"several columns of classes: {columns}", "one column of classes")
    cells = table.column(places[0])
    classes = tuple(sorted(set(cells) - {""}))
    return _targets(
        table,
        classes,
        [(cell,) if cell else None for cell in cells],
        is_multi_label=False,
        rule=f"column '{table.columns[places[0]]}': one class for each image",
    )


def _targets(
    table: Table,
    classes: tuple[str, ...],
    found: list[tuple[str, ...] | None],
    *,
    is_multi_label: bool,
    rule: str,
    findings: tuple[Finding, ...] = (),
) -> Targets:
    order = {name: place for place, name in enumerate(classes)}
    keys = table.column(table.key)
    rows = tuple(
        TargetRow(
            number=number, key=key, classes=None if names is None else tuple(sorted(names, key=order.__getitem__))
        )
        for number, key, names in zip(table.numbers, keys, found, strict=True)
    )
    unknown = sum(row.classes is None for row in rows)
    if unknown:
        what = f"{unknown} of {len(rows)} rows of the table of targets name no class; their cases cannot be used for training."
        findings = (*findings, notice("row-without-class", what))
    return Targets(
        classes=classes,
        is_multi_label=is_multi_label,
        rows=rows,
        rule=f"targets: column '{table.columns[table.key]}' names the image; {rule}",
        findings=findings,
    )
