"""The usable cases of a training set for classification: known classes, each class in the training split, images of one shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from medweave_core.contracts.cohort import PreparedCase, PreparedCohort
from medweave_core.contracts.volume import Triple, is_table, triple_of
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.io.findings import first_of
from medweave_steps.tasks.classification.outputs import ClassTargets


def targets_of_cohort(cohort: PreparedCohort) -> ClassTargets:
    """Return what a new model learns from a training set.

    Raises:
        UserInputError: the training set has no classes, or only one where classes exclude each other.
    """
    least = 1 if cohort.is_multi_label else 2
    if len(cohort.classes) < least:
        names = ", ".join(one.name for one in cohort.classes)
        raise UserInputError(
            "the training set has too few classes for a classification.",
            seen=f"{len(cohort.classes)} classes in cohort.json{f': {names}' if names else ''}",
            expected=f"at least {least} {'class' if least == 1 else 'classes'}",
            do="add a table of targets to the cohort and run check and preprocess again",
        )
    return ClassTargets(classes=cohort.classes, is_multi_label=cohort.is_multi_label)


def check_classes_agree(cohort: PreparedCohort, targets: ClassTargets, *, of: str) -> None:
    """Refuse cases whose classes are not those of a model, or are in another order.

    Args:
        of: what has the classes that are expected, for the message.
    Raises:
        UserInputError: names, order or kind differ; the message gives both.
    """
    seen = ClassTargets(classes=cohort.classes, is_multi_label=cohort.is_multi_label)
    if seen.names == targets.names and seen.is_multi_label == targets.is_multi_label:
        return
    raise UserInputError(
        f"the classes of the preprocessed cases are not those of {of}.",
        seen=f"{shown_classes(seen)} (cohort.json)",
        expected=f"{shown_classes(targets)} (model_card.json)",
        do="run check and preprocess on the cohort with a table of the same classes in the same order",
    )


def usable_cases(prepared: PreparedFolder, targets: ClassTargets) -> tuple[list[CaseFolder], list[CaseFolder]]:
    """Return training and validation cases.

    Raises:
        UserInputError: a split is empty, a case has no known class or an unusable one, a class has no training case, or the
            images have different shapes.
    """
    check_classes_agree(prepared.cohort, targets, of="the model")
    if is_table(prepared.cohort.channels):
        training, validation = prepared.cases("train"), prepared.cases("validation")  # a table needs no validation rows
        check_table_parts([folder.case for folder in training])
        _check_each_class([folder.case for folder in training], targets)
        return training, validation
    training, validation = prepared.training_cases()
    for cases in (training, validation):
        check_case_classes([folder.case for folder in cases], targets)
    _check_each_class([folder.case for folder in training], targets)
    common_shape([*training, *validation])
    return training, validation


def check_case_classes(cases: Sequence[PreparedCase], targets: ClassTargets) -> None:
    """Refuse cases whose classes are not known, or not those of the model.

    Raises:
        UserInputError: names the first such cases.
    """
    unknown = [case.case_id for case in cases if case.classes is None]
    if unknown:
        raise UserInputError(
            f"{len(unknown)} of {len(cases)} cases have no known class.",
            seen=f"no class for {first_of(unknown)}",
            expected="the classes of every training and validation case",
            do="add rows for these cases to the table of targets and run check and preprocess again, or remove the cases",
        )
    names = set(targets.names)
    for case in cases:
        own = case.classes or ()
        if names.issuperset(own) and (targets.is_multi_label or len(own) == 1):
            continue
        raise UserInputError(
            f"the classes of {case.case_id} cannot be used.",
            seen=f"classes {', '.join(own) or 'none'}",
            expected=f"{'any' if targets.is_multi_label else 'exactly one'} of {', '.join(targets.names)}",
            do="correct the table of targets and run check and preprocess again",
        )


def check_table_parts(training: Sequence[PreparedCase]) -> None:
    """Refuse a table without training rows.

    Raises:
        UserInputError: there is none.
    """
    if not sum(case.num_samples for case in training):
        raise UserInputError(
            "the training set has no training rows.",
            seen=f"{len(training)} training parts",
            expected="the training_set folder of encode-table",
            do="run encode-table again, and use its training_set",
        )


def counts_of(cases: Sequence[PreparedCase], targets: ClassTargets) -> Mapping[str, int]:
    """Return the number of cases of each class, by name; of a table, of rows."""
    counts = Counter(name for case in cases for name in case.classes or ())
    for case in cases:
        counts.update(case.rows_by_class or {})
    return {name: counts[name] for name in targets.names}


def common_shape(cases: Sequence[CaseFolder]) -> Triple:
    """Return the shape I, J, K that all images have; reads the headers of the arrays.

    Raises:
        UserInputError: two shapes differ; the message names a case of each.
    """
    first: dict[Triple, str] = {}
    for folder in cases:
        shape = triple_of(folder.volume_CIJK().shape[1:])
        first.setdefault(shape, folder.case.case_id)
        if len(first) > 1:
            raise UserInputError(
                "the images have different shapes.",
                seen="; ".join(f"{' x '.join(map(str, shape))} voxels in {name}" for shape, name in first.items()),
                expected="images of one shape: a classification sees the whole image",
                do="run preprocess with a fixed size for all images",
            )
    return next(iter(first))


def _check_each_class(training: Sequence[PreparedCase], targets: ClassTargets) -> None:
    counts = counts_of(training, targets)
    absent = [name for name, number in counts.items() if not number]
    if absent:
        raise UserInputError(
            f"no training case has the class {absent[0]}.",
            seen=f"{sum(case.num_samples for case in training)} training cases without the class {first_of(absent)}",
            expected="each class in at least one training case",
            do="add training cases of this class, or remove the class from the table of targets; then run check and preprocess",
        )


def shown_classes(targets: ClassTargets) -> str:
    """Return how many classes a case has, and their names, for messages."""
    kind = "any number of" if targets.is_multi_label else "exactly one of"
    return f"{kind} {', '.join(targets.names)}" if targets.classes else "no classes"
