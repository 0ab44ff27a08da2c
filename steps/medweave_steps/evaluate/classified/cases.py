"""The classified cases, with their known classes and prepared images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.classifications import RECORD_FILE, Classifications, ClassifiedCase
from medweave_core.contracts.cohort import CaseEntry, CohortIndex
from medweave_core.errors import UserInputError
from medweave_steps.evaluate.same_run import check_same_run
from medweave_steps.io.cohort.prepared import CaseFolder, open_prepared, read_classifications
from medweave_steps.io.cohort.signals import recording_of
from medweave_steps.tasks.classification.cases import shown_classes
from medweave_steps.tasks.classification.outputs import ClassTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row of a table.

    Attributes:
        patient_key: equal for rows of one group.
        classes: its class; None where it is not known.
    """

    case_id: str
    patient_key: str
    classes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCase:
    """One classified case whose classes are known.

    Attributes:
        entry: the case in the cohort index, or a row of a table.
        classified: the result of `classify`.
        prepared: the case in its batch, or the part with the row, for the baseline.
    """

    entry: CaseEntry | TableRow
    classified: ClassifiedCase
    prepared: CaseFolder

    @property
    def truth(self) -> tuple[str, ...]:
        """Return the names of the known classes."""
        assert self.entry.classes is not None, "cases without known classes are sorted out before"
        return self.entry.classes


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCases:
    """What is evaluated.

    Attributes:
        targets: classes of the model.
        cases: at least one, in the order of the case batches.
        without_truth: ids of classified cases whose classes are not known.
    """

    targets: ClassTargets
    cases: tuple[KnownCase, ...]
    without_truth: tuple[str, ...]


def known_cases(index: CohortIndex, folders: Sequence[Path], batches: Sequence[Path]) -> KnownCases:
    """Return the cases to evaluate.

    Args:
        folders: of classifications.
        batches: prepared batches that were classified.
    Raises:
        UserInputError: a folder is none of `classify`; the folders come from different models; a case was classified twice, is
            missing in one of the three places, or has a class that the model does not predict; no case has a known class.
    """
    records = [read_classifications(folder) for folder in folders]
    targets = targets_of(records)
    classified = by_case(records)
    entries = {entry.case_id: entry for entry in index.cases}
    prepared = {case.case.case_id: case for folder in batches for case in open_prepared(folder).cases()}
    check_same_run(entries.keys(), prepared.keys(), classified.keys(), classes=True)
    _check_classes(index, targets)
    cases = tuple(
        KnownCase(entry=entries[case_id], classified=classified[case_id], prepared=case)
        for case_id, case in prepared.items()
        if entries[case_id].classes is not None
    )
    without_truth = tuple(case_id for case_id in prepared if entries[case_id].classes is None)
    if not cases:
        raise no_known_class(len(without_truth))
    return KnownCases(targets=targets, cases=cases, without_truth=without_truth)


def samples_of_recordings(known: KnownCases) -> dict[str, list[KnownCase]]:
    """Return the cases of each recording by its id; empty for cases other than samples of an ECG, or a multi-label model."""
    if known.targets.is_multi_label or not all(
        isinstance(case.entry, CaseEntry) and case.entry.beats for case in known.cases
    ):
        return {}
    samples: dict[str, list[KnownCase]] = {}
    for case in known.cases:
        samples.setdefault(recording_of(case.entry.case_id), []).append(case)
    return samples


def no_known_class(number: int) -> UserInputError:
    """Return the error for cases of which none has a known class."""
    return UserInputError(
        "no case has a known class to compare with.",
        seen=f"{number} cases, none with a known class",
        expected="at least one case with known classes",
        do="add a table of targets to the cohort and run check again, or skip evaluate: the classifications are complete "
        "without it",
    )


def targets_of(records: Sequence[Classifications]) -> ClassTargets:
    """Return the classes of the model that all classifications come from.

    Raises:
        UserInputError: they come from different models.
    """
    first = records[0]
    for other in records[1:]:
        if other.model_sha256 != first.model_sha256 or other.classes != first.classes:
            raise UserInputError(
                "the classifications come from different models.",
                seen=f"'{other.model_name}', card {other.model_sha256[:16]}…, classes {_names(other.classes)}",
                expected=f"'{first.model_name}', card {first.model_sha256[:16]}…, classes {_names(first.classes)}, as in the first "
                "folder",
                do="evaluate the classifications of one model at a time",
            )
    return ClassTargets(classes=first.classes, is_multi_label=first.is_multi_label)


def by_case(records: Sequence[Classifications]) -> dict[str, ClassifiedCase]:
    """Return the classified cases by id.

    Raises:
        UserInputError: a case was classified twice.
    """
    found: dict[str, ClassifiedCase] = {}
    for record in records:
        for case in record.cases:
            if case.case_id in found:
                raise UserInputError(
                    f"{case.case_id} was classified twice.",
                    seen="a result in two folders of --classifications",
                    expected="one result per case",
                    do="list each folder once, and remove older results",
                )
            found[case.case_id] = case
    return found


def _check_classes(index: CohortIndex, targets: ClassTargets) -> None:
    """Refuse known classes that the model cannot predict; of those that no case has, the index may have fewer."""
    own = ClassTargets(classes=index.classes, is_multi_label=index.is_multi_label)
    unknown = [name for name in own.names if name not in targets.names]
    if unknown or own.is_multi_label > targets.is_multi_label:
        raise UserInputError(
            "the cohort has classes that the model does not predict.",
            seen=f"{shown_classes(own)} (cohort_index.json)",
            expected=f"{shown_classes(targets)} ({RECORD_FILE})",
            do="correct the table of targets and run check again, or use a model that was trained with these classes",
        )


def _names(classes: Sequence[ImageClass]) -> str:
    return ", ".join(one.name for one in classes)
