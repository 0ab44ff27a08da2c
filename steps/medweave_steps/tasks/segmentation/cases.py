"""The usable cases of a training set for segmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from medweave_core.contracts.labels import Label, ascending, shown
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.io.findings import first_of
from medweave_steps.tasks.segmentation.targets import Targets


def usable_cases(prepared: PreparedFolder, targets: Targets) -> tuple[list[CaseFolder], list[CaseFolder]]:
    """Return training and validation cases.

    Raises:
        UserInputError: the labels are not those of the model, a split is empty, a case has no ground truth, or a label is in no
            training case.
    """
    labels, cohort = targets.head.labels, prepared.cohort
    if cohort.classes and not any(case.num_lesions for case in cohort.cases):
        raise UserInputError(
            "the training set has classes and no masks.",
            seen=f"the classes {', '.join(one.name for one in cohort.classes)}",
            expected="masks for the task segmentation",
            do="train with --task classification",
        )
    _check_labels(prepared, labels)
    training, validation = prepared.training_cases()
    missing = [c.case.case_id for cases in (training, validation) for c in cases if not c.case.has_label]
    if missing:
        raise UserInputError(
            "training cases have no ground truth.",
            seen=f"no label for {first_of(missing)}",
            expected="a label for every training and validation case",
            do="add the masks and run check and preprocess again, or remove these cases from the cohort",
        )
    if not any(c.case.num_lesions for c in training):
        raise UserInputError(
            "no training case has a lesion.",
            seen=f"{len(training)} training cases, 0 lesions",
            expected="at least one lesion",
            do="add cases with lesions, or correct the labels that the cohort declares",
        )
    if len(labels) > 1:
        _check_each_label(training, labels)
    return training, validation


def _check_labels(prepared: PreparedFolder, labels: Sequence[Label]) -> None:
    declared = ascending(prepared.cohort.labels)
    values = [label.value for label in declared]
    if max(len(values), len(labels)) > 1 and values != [label.value for label in labels]:
        raise UserInputError(
            "the labels of the training set are not those that the model predicts.",
            seen=f"label {shown(declared) or 'none'} (cohort.json)",
            expected=f"label {shown(labels)}",
            do="use a training set with these labels (check --merge-labels makes several labels one), or train a new model",
        )


def _check_each_label(training: Sequence[CaseFolder], labels: Sequence[Label]) -> None:
    counts = [_voxels_by_label(case, labels) for case in training]
    absent = [label for label in labels if not any(own.get(str(label.value)) for own in counts)]
    if absent:
        raise UserInputError(
            f"no training case has the label {absent[0].name}.",
            seen=f"{len(training)} training cases without a voxel of label {shown(absent)}",
            expected="each label in at least one training case",
            do="add training cases with this label, or leave it out: check --merge-labels merges it with another label, or with 0",
        )


def _voxels_by_label(case: CaseFolder, labels: Sequence[Label]) -> Mapping[str, int]:
    if case.case.voxels_by_label:
        return case.case.voxels_by_label
    counts = np.bincount(case.label_IJK().ravel(), minlength=256)
    return {str(label.value): int(counts[label.value]) for label in labels}
