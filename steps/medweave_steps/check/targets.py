"""Targets applied to the cases of a cohort: which table, which row belongs to which case, and whose image it is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError
from medweave_steps.check.cases import Examined
from medweave_steps.io.cohort.case_index import CaseIndex
from medweave_steps.io.cohort.discovery import patient_key_of
from medweave_steps.io.cohort.files import CARD_FILE
from medweave_steps.io.cohort.tables import Table, identities_of, read_table
from medweave_steps.io.cohort.targets import TargetRow, Targets, form_of, read_targets
from medweave_steps.io.findings import first_of, notice, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortTargets:
    """The targets of a cohort; its cases have them in their entries.

    Attributes:
        rule: how the tables were read, in words; empty without a table.
        left_out: ids of the cases that `--classes` leaves out.
    """

    classes: tuple[ImageClass, ...] = ()
    is_multi_label: bool = False
    findings: tuple[Finding, ...] = ()
    rule: str = ""
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortCases:
    """What rows can name.

    Attributes:
        examined: all volumes or images; their entries get classes and patients.
        files: path of each image by case id, those that cannot be used included; empty for volumes.
        known_patients: case ids whose patient the header names.
        issuers: issuers of patient ids that headers name.
    """

    examined: Sequence[Examined]
    files: Mapping[str, str]
    known_patients: frozenset[str]
    issuers: frozenset[str]


def choose_targets(tables: Mapping[str, Table], numbers: Mapping[str, int]) -> Targets | None:
    """Return the targets of the only table that has some; None if no table has.

    Args:
        numbers: of each file among all files of the cohort, sorted by path, from 1.
    Raises:
        FindingError: several tables have targets, or the only one cannot be used.
    """
    candidates = [name for name, table in tables.items() if form_of(table) is not None]
    if len(candidates) > 1:
        shown = [f"file {numbers[name]} ({form_of(tables[name])})" for name in candidates]
        raise refuse(
            "several-tables",
            "several tables of the cohort have targets.",
            seen=f"{first_of(shown)}; numbers of the files sorted by path",
            expected="one table of targets",
            do="name the table with --targets",
        )
    return read_targets(tables[candidates[0]]) if candidates else None


def read_declared_targets(path: Path) -> tuple[Table, Targets]:
    """Return the table of `--targets` and its targets.

    Raises:
        UsageError: there is no such file.
        FindingError: it cannot be used.
    """
    if not path.is_file():
        raise UsageError("--targets is not an existing file.", expected="a CSV or TSV table", do="correct the path")
    table = read_table(path)
    return table, read_targets(table)


def apply_targets(
    targets: Targets | None,
    tables: Sequence[Table],
    cases: CohortCases,
    declared: tuple[ImageClass, ...],
    *,
    selected: tuple[str, ...] = (),
) -> CohortTargets:
    """Give each case its classes and, to images, their patients; return the classes of the cohort.

    Args:
        targets: None for images without targets.
        tables: that may name the patients of images; the first that names an image decides.
        declared: classes of the cohort card; empty if it declares none.
        selected: classes of `--classes`; empty for all.
    Raises:
        UsageError: `selected` does not fit the targets.
    """
    findings: list[Finding] = []
    index = _index(cases)
    if cases.files:
        findings += _set_patients(tables, cases, index)
    if selected:
        targets = _check_selected(targets, selected)
    if targets is None:
        what = "the cohort has no table of targets: its images can be classified, but not used for training."
        return CohortTargets(findings=(*findings, notice("no-targets", what)))
    classes, class_findings = _classes(targets, declared, selected)
    found, row_findings = _rows_by_case(targets, index, selected)
    order = {one.name: place for place, one in enumerate(classes)}
    for one in cases.examined:
        row = found.get(one.name.case_id)
        if one.entry is not None and row is not None and row.classes is not None:
            names = tuple(sorted(row.classes, key=lambda name: order.get(name, len(order))))
            one.entry = dataclasses.replace(one.entry, classes=names)
    without = [one.name for one in cases.examined if one.name.case_id not in found]
    left_out = _left_out(found, selected)
    findings += [*targets.findings, *class_findings, *row_findings, *_notice_left_out(left_out, found, selected)]
    if without:
        findings.append(
            refuse(
                "cases-without-row",
                f"{len(without)} of {len(cases.examined)} {'images' if cases.files else 'volumes'} have no row in the table of "
                "targets.",
                seen=first_of([str(name) for name in without]),
                expected="a row for each of them",
                do="add the rows, remove the files, or use --on-error skip: such cases then have no target",
            ).finding
        )
    return CohortTargets(
        classes=classes, is_multi_label=targets.is_multi_label, findings=tuple(findings), rule=targets.rule,
        left_out=frozenset(left_out),
    )  # fmt: skip


def _check_selected(targets: Targets | None, selected: tuple[str, ...]) -> Targets:
    """Return the targets with the classes of `--classes` only, in the order of the cohort; rows keep all classes.

    Raises:
        UsageError: there are no targets, or a case can have several classes, or a class is not known.
    """
    if targets is None:
        raise UsageError(
            "--classes needs a table of targets.", expected="a table of targets", do="name it with --targets"
        )
    if targets.is_multi_label:
        raise UsageError(
            "--classes applies to targets with one class for each case.",
            seen="targets with any number of classes for each case",
            expected="one class for each case",
            do="leave --classes out",
        )
    for name in selected:
        if name not in targets.classes:
            raise UsageError(
                "--classes names a class that the table of targets does not have.",
                seen=f"'{name}'",
                expected=first_of(targets.classes),
                do=closest(name, targets.classes) or "correct the name",
            )
    return dataclasses.replace(targets, classes=tuple(name for name in targets.classes if name in selected))


def _is_left_out(row: TargetRow, selected: tuple[str, ...]) -> bool:
    return bool(selected) and not set(row.classes or ()) & set(selected)


def _left_out(rows: Mapping[str, TargetRow], selected: tuple[str, ...]) -> list[str]:
    """Return the ids of the cases whose rows have another class than `--classes`, or none."""
    return [case_id for case_id, row in rows.items() if _is_left_out(row, selected)]


def _notice_left_out(
    left_out: Sequence[str], rows: Mapping[str, TargetRow], selected: tuple[str, ...]
) -> list[Finding]:
    """Return a notice with the number of cases of each class that `--classes` leaves out; nothing without the option."""
    if not left_out:
        return []
    names = ["".join(rows[case_id].classes or ()) or "without class" for case_id in left_out]
    counts = ", ".join(f"{name} {number}" for name, number in sorted(Counter(names).items()))
    what = f"{len(left_out)} of {len(rows)} cases left out: their class is not one of --classes {' '.join(selected)}."
    return [notice("other-class", what, seen=counts)]


def _index(cases: CohortCases) -> CaseIndex:
    index = CaseIndex(issuers=cases.issuers | {""})
    for one in cases.examined:
        case_id, entry = one.name.case_id, one.entry
        file = cases.files.get(case_id, "")
        if not file and entry is not None:
            file = entry.files[0] if entry.source_format == "nifti" else ""
            index.add(case_id, file=file, patient_key=entry.patient_key)
        else:
            index.add(case_id, file=file)
    return index


def _set_patients(tables: Sequence[Table], cases: CohortCases, index: CaseIndex) -> list[Finding]:
    """Give images the patients that tables name, else their lesions; return notices."""
    entries = {one.name.case_id: one for one in cases.examined if one.entry is not None}
    without_header = set(entries) - cases.known_patients
    found = identities_of(tables, index.names, without_header)
    for case_id, identity in found.items():
        one = entries[case_id]
        assert one.entry is not None
        one.entry = dataclasses.replace(one.entry, patient_key=patient_key_of(identity))
    lesions = sum(not identity.endswith("\n") for identity in found.values())
    unknown = without_header - set(found)
    findings = []
    if lesions:
        images = "" if lesions == len(found) else f" of {lesions} image{'s' if lesions > 1 else ''}"
        what = f"no table names the patients{images}: images of one lesion_id count as one patient in the split."
        do = "add a column patient_id if patients have several lesions"
        findings.append(notice("lesions-as-patients", what, do=do))
    if unknown:
        number = "1 image counts" if len(unknown) == 1 else f"{len(unknown)} images count"
        what = f"{number} as a patient each, since neither a table nor a header names the patient."
        findings.append(notice("no-patient-id", what, do="add a column patient_id if patients have several images"))
    return findings


def _classes(
    targets: Targets, declared: tuple[ImageClass, ...], selected: tuple[str, ...]
) -> tuple[tuple[ImageClass, ...], list[Finding]]:
    """Return the classes: those that the cohort card declares, else those of the table; those of `--classes` only."""
    if not declared:
        return tuple(ImageClass(name=name) for name in targets.classes), []
    names = [one.name for one in declared]
    undeclared = [name for name in targets.classes if name not in names]
    if undeclared:
        finding = refuse(
            "undeclared-class",
            "the table of targets has classes that the cohort card does not declare.",
            seen=first_of(undeclared),
            expected=first_of(names),
            do=f"correct the table, or 'classes' of {CARD_FILE}",
        ).finding
        return declared, [finding]
    if selected:
        return tuple(one for one in declared if one.name in selected), []
    empty = [name for name in names if name not in targets.classes]
    if not empty:
        return declared, []
    what = f"{len(empty)} of {len(names)} classes of the cohort card have no case."
    return declared, [notice("class-without-case", what, seen=first_of(empty), do="add cases before training")]


def _rows_by_case(
    targets: Targets, index: CaseIndex, selected: tuple[str, ...]
) -> tuple[dict[str, TargetRow], list[Finding]]:
    """Return the row of each case, and the findings about rows; a row that `--classes` leaves out needs no case."""
    found: dict[str, TargetRow] = {}
    unmatched: list[int] = []
    ambiguous: list[int] = []
    twice: list[int] = []
    contradictory: list[int] = []
    for row in targets.rows:
        case_ids = index.cases_of(row.key)
        if not case_ids and not _is_left_out(row, selected):
            unmatched.append(row.number)
        elif len(case_ids) > 1 and not index.by_patient:
            ambiguous.append(row.number)
        for case_id in case_ids:
            first = found.setdefault(case_id, row)
            if first is not row:
                (twice if first.classes == row.classes else contradictory).append(row.number)
    findings = []
    if unmatched:
        findings.append(
            _about_rows(
                "rows-without-case", f"{len(unmatched)} of {len(targets.rows)} rows of the table of targets name no file.",
                unmatched, "a file, case or patient of the cohort in each row",
                "add the files, correct the table, or use --on-error skip: such rows are then ignored",
            )
        )  # fmt: skip
    if ambiguous:
        findings.append(
            _about_rows(
                "ambiguous-row", "rows of the table of targets name several files.", ambiguous,
                "one file for each row", "write the path of the file in the cohort into the table, or rename the files",
            )
        )  # fmt: skip
    if contradictory:
        findings.append(
            _about_rows(
                "two-targets", "rows of the table of targets give other classes to a case that has some already.", contradictory,
                "one row for each case", "correct the table",
            )
        )  # fmt: skip
    if twice:
        what = f"{len(twice)} rows of the table of targets repeat another row."
        findings.append(notice("row-twice", what, seen=f"rows {first_of(twice)}"))
    return found, findings


def _about_rows(code: str, what: str, numbers: Sequence[int], expected: str, do: str) -> Finding:
    return refuse(code, what, seen=f"row {first_of(numbers)} (the header is row 1)", expected=expected, do=do).finding


def find_untrained_classes(cases: Sequence[CaseEntry], classes: Sequence[ImageClass]) -> list[Finding]:
    """Return an error about classes whose cases all have a fixed split other than training."""
    errors = []
    for one in classes:
        members = [case for case in cases if case.classes and one.name in case.classes]
        if members and all(case.fixed_split in ("validation", "test") for case in members):
            errors.append(
                f"{one.name}: {len(members)} in {' and '.join(sorted({str(c.fixed_split) for c in members}))}"
            )
    if not errors:
        return []
    return [
        refuse(
            "class-without-training-case",
            "classes of the test or validation split have no training case.",
            seen=first_of(errors),
            expected="a training case of each class",
            do="correct splits.json, or add training cases",
        ).finding
    ]
