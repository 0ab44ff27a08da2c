"""Tables about images: targets, patients and lesions under new names; all other columns are dropped."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from medweave_core.contracts.cohort import Finding
from medweave_steps.deidentify.characteristics import clean_age, clean_sex
from medweave_steps.deidentify.describe import LONGEST_NAME
from medweave_steps.deidentify.identifiers import Identifiers
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.io.cohort.files import CARD_FILE
from medweave_steps.io.cohort.tables import CaseNames, Table, find_tables, identities_of, plain_name
from medweave_steps.io.cohort.targets import NO_FINDING, Form, target_columns
from medweave_steps.io.findings import refuse

_DIGITS = 12
# Columns that --retain-patient-characteristics keeps, and what it keeps of their cells.
_CHARACTERISTICS: Mapping[str, Callable[[str], str | None]] = {
    **dict.fromkeys(("age", "age_approx", "patient_age"), clean_age),
    **dict.fromkeys(("sex", "gender", "patient_sex", "patient_gender"), clean_sex),
}


@dataclass(slots=True, kw_only=True)
class WrittenTables:
    """The tables of the output.

    Attributes:
        files: path in the source to path in the output.
        notices: about columns and rows that were dropped, by their number.
        findings: errors; the columns or rows that they are about were not written.
    """

    files: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTables:
    """The tables with a row that names an image of the cohort.

    Attributes:
        tables: by path in the cohort, in the order in which `check` reads them.
        names: of the images, as cells have them.
    """

    tables: Mapping[str, Table]
    names: CaseNames

    @classmethod
    def read(cls, cohort: Path, names: Sequence[str], case_ids: Mapping[str, str]) -> ImageTables:
        """Read the tables of a cohort.

        Args:
            names: files that may be tables, sorted.
            case_ids: of each image by its path.
        """
        images = CaseNames()
        for file, case_id in case_ids.items():
            images.add(file, case_id=case_id, file=file)
        tables = {
            name: table
            for name, table in find_tables(cohort, names).items()
            if any(map(images.cases_of, table.column(table.key)))
        }
        return cls(tables=tables, names=images)

    def files_of(self, cell: str) -> set[str]:
        """Return the images that a cell names."""
        return self.names.cases_of(cell)

    def identities(self, files: Collection[str]) -> dict[str, str]:
        """Return the patients of images whose headers name none, else their lesions: what `check` makes patient keys of.

        Args:
            files: such images.
        """
        return identities_of(self.tables.values(), self.names, files)

    def write(
        self,
        output: Path,
        new_files: Mapping[str, str],
        patients: Mapping[str, str],
        pseudonyms: Pseudonyms,
        *,
        declared: Collection[str],
        retain: bool,
    ) -> WrittenTables:
        """Write the tables with the rows of the images of the output.

        Args:
            new_files: path of each written image, by its path in the source.
            patients: pseudonym of each image whose header names a patient.
            declared: names of classes in the cohort card.
            retain: keep age and sex.
        """
        written = WrittenTables()
        words = Identifiers(self._identifying_words())
        digits = len(str(len(self.tables)))
        for number, (name, table) in enumerate(self.tables.items(), start=1):
            form, targets = target_columns(table)
            title = f"table {number} of {len(self.tables)} sorted by path"
            owners = _owners_of_classes(table, form, targets)
            alone = {name for name, patients in owners.items() if len(patients) == 1} - set(declared)
            finding = _refused_classes(owners, alone, title, words)
            if finding is not None:
                written.findings.append(finding)
                targets = []
            rewrite = _Rewrite(table, self, new_files, patients, pseudonyms, targets, retain=retain)
            path = f"table-{number:0{digits}d}.csv"
            with (output / path).open("w", encoding="utf-8", newline="") as stream:
                csv.writer(stream, lineterminator="\n").writerows(rewrite.rows())
            written.files[name] = path
            written.notices += rewrite.notices(title, retain=retain)
            if rewrite.num_ambiguous:
                written.findings.append(_ambiguous(title, rewrite.num_ambiguous))
        return written

    def _identifying_words(self) -> set[str]:
        """Return the names of images, patients and lesions in the tables."""
        words: set[str] = set()
        for table in self.tables.values():
            words |= {PurePosixPath(cell).stem for cell in table.column(table.key)}
            for place in (table.patient, table.lesion):
                words |= set() if place is None else set(table.column(place))
        return words


class _Rewrite:
    """One table with new names."""

    def __init__(
        self, table: Table, tables: ImageTables, new_files: Mapping[str, str], patients: Mapping[str, str],
        pseudonyms: Pseudonyms, targets: Sequence[int], *, retain: bool,
    ) -> None:  # fmt: skip
        self._table, self._tables, self._new_files, self._patients = table, tables, new_files, patients
        self._pseudonyms = pseudonyms
        self._retained = {
            place: _CHARACTERISTICS[plain_name(column)]
            for place, column in enumerate(table.columns)
            if retain and plain_name(column) in _CHARACTERISTICS
        }
        named = [place for place in (table.key, table.patient, table.lesion) if place is not None]
        self._places = list(dict.fromkeys((*named, *targets, *self._retained)))
        self.num_ambiguous = self._num_dropped = 0

    def rows(self) -> list[list[str]]:
        """Return the header line and the rows of written images, sorted by their new names: the source's order may reveal dates."""
        rows = []
        for row in self._table.rows:
            files = self._tables.files_of(row[self._table.key])
            self.num_ambiguous += len(files) > 1
            file = next(iter(files)) if len(files) == 1 else ""
            if file in self._new_files:
                rows.append([self._cell(place, row[place], file) for place in self._places])
            else:
                self._num_dropped += 1
        return [[self._table.columns[place] for place in self._places], *sorted(rows, key=lambda cells: cells[0])]

    def _cell(self, place: int, cell: str, file: str) -> str:
        if place == self._table.key:
            new, has_suffix = PurePosixPath(self._new_files[file]), PurePosixPath(cell).name == PurePosixPath(file).name
            return new.name if has_suffix else new.stem
        if not cell:
            return ""
        if place == self._table.patient:
            return self._patients.get(file) or self._pseudonyms.patient(f"{cell}\n")
        if place == self._table.lesion:
            return f"lesion-{self._pseudonyms.token('lesion', cell, digits=_DIGITS)}"
        clean = self._retained.get(place)
        return cell if clean is None else clean(cell) or ""

    def notices(self, title: str, *, retain: bool) -> list[str]:
        """Return what was dropped; no name of a column, which may be free text."""
        notices = []
        columns = len(self._table.columns)
        if columns > len(self._places):
            advice = "" if retain else " (--retain-patient-characteristics keeps age and sex)"
            notices.append(
                f"{title}: {columns - len(self._places)} of {columns} columns not written; retained: image, patient, "
                f"lesion, targets{', age, sex' if retain else ''}{advice}."
            )
        if self._num_dropped:
            notices.append(
                f"{title}: {self._num_dropped} of {len(self._table.rows)} rows not written: they name no image of the "
                "output."
            )
        return notices


def _owners_of_classes(table: Table, form: Form | None, targets: Sequence[int]) -> dict[str, set[str]]:
    """Return the patients of each class, else the images; none where the class is the name of a column."""
    if form == "one-hot":
        return {table.columns[place]: set() for place in targets}
    owners: dict[str, set[str]] = {}
    for row in table.rows:
        owner = (row[table.patient] if table.patient is not None else "") or row[table.key]
        for name in (name.strip() for place in targets for name in row[place].split("|")):
            if name and name != NO_FINDING:
                owners.setdefault(name, set()).add(owner)
    return owners


def _refused_classes(names: Collection[str], alone: Collection[str], title: str, words: Identifiers) -> Finding | None:
    """Return an error about class names that may be other text; they are the only text that is written as it is.

    Args:
        alone: those of one patient only, which may be words about this patient.
    """
    named = {name for name in names if words.in_text(name)}
    long = {name for name in names if len(name) > LONGEST_NAME}
    refused = named | long | set(alone)
    if not refused:
        return None
    return refuse(
        "identifying-classes",
        f"{title}: {len(refused)} of {len(names)} class names may identify a patient.",
        seen=f"{len(named)} contain the name of an image, a patient or a lesion; {len(long)} have more than {LONGEST_NAME} "
        f"characters; {len(alone)} occur with one patient only and are not declared",
        expected="short names of classes, such as MEL",
        do=f"correct the table, declare the names in 'classes' of {CARD_FILE}, or skip its targets with --on-error skip",
    ).finding


def _ambiguous(title: str, count: int) -> Finding:
    return refuse(
        "ambiguous-row",
        f"{title}: {count} rows name several images.",
        seen="file names that occur in several folders",
        expected="one image for each row",
        do="write the path of the image into the table, or skip these rows with --on-error skip",
    ).finding
