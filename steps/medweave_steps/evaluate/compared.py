"""Which labels and regions are evaluated: those of the delivered masks and of the ground truth, compared by value and name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.cohort import CohortIndex
from medweave_core.contracts.labels import Label, Region, as_regions, ascending, declared_or_lesion, shown
from medweave_core.contracts.segmentations import Segmentations
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import read_segmentations


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLabels:
    """What is evaluated.

    Attributes:
        labels: evaluated labels of the ground truth.
        delivered: labels of the delivered masks, ascending by value; the segments of a DICOM SEG have their order.
        outputs: labels or regions with figures of their own; empty where there is one label on both sides.
        not_evaluated: names of labels and regions of the model that the ground truth lacks.
    """

    labels: tuple[Label, ...]
    delivered: tuple[Label, ...]
    outputs: tuple[Region, ...] = ()
    not_evaluated: tuple[str, ...] = ()


def compare_labels(index: CohortIndex, folders: Sequence[Path]) -> ComparedLabels:
    """Compare the labels of the cohort index with those that `segment` recorded.

    A label of the model that the ground truth lacks is not evaluated; its regions are not, either. If no region is left, the labels
    are evaluated.

    Args:
        folders: of segmentations; one without `segmentations.json` has the labels of the cohort.
    Raises:
        UserInputError: the folders come from models of different labels; the ground truth has a label that the model does not
            predict; or a value has different names on both sides.
    """
    truth = declared_or_lesion(index.labels)
    record = _only_record(folders)
    delivered = ascending(declared_or_lesion(record.labels) if record else truth)
    if len(truth) == 1 and len(delivered) == 1:
        return ComparedLabels(labels=truth, delivered=delivered)
    _check_names(truth, delivered)
    known = {label.value for label in truth}
    absent = [label for label in delivered if label.value not in known]
    regions = record.regions if record else ()
    by_label = as_regions(delivered)
    complete = tuple(region for region in regions if known.issuperset(region.values))
    outputs = complete or tuple(label for label in by_label if known.issuperset(label.values))
    not_evaluated = [label.name for label in absent]
    not_evaluated += [region.name for region in regions if region not in complete and region.name not in not_evaluated]
    return ComparedLabels(
        labels=ascending(truth), delivered=delivered, outputs=outputs, not_evaluated=tuple(not_evaluated)
    )


def _only_record(folders: Sequence[Path]) -> Segmentations | None:
    records = [record for folder in folders if (record := read_segmentations(folder)) is not None]
    for other in records[1:]:
        if (other.labels, other.regions) != (records[0].labels, records[0].regions):
            raise UserInputError(
                "the segmentations come from models of different labels.",
                seen=_outputs_of(other),
                expected=f"{_outputs_of(records[0])}, as in the first folder",
                do="evaluate the segmentations of one model at a time",
            )
    return records[0] if records else None


def _outputs_of(record: Segmentations) -> str:
    regions = ", ".join(region.text for region in record.regions)
    return f"labels {shown(declared_or_lesion(record.labels))}" + (f", regions {regions}" if regions else "")


def _check_names(truth: Sequence[Label], delivered: Sequence[Label]) -> None:
    by_value = {label.value: label for label in delivered}
    unknown = [label for label in truth if label.value not in by_value]
    if unknown:
        values = ",".join(str(label.value) for label in unknown)
        raise UserInputError(
            "the ground truth has labels that the model does not predict.",
            seen=f"labels {shown(truth)} in the cohort index; {shown(unknown)} not among the labels of the model",
            expected=f"labels of the model: {shown(delivered)}",
            do=f"run check with --merge-labels 0,{values}:background to leave them out, or merge them with a label of the model",
        )
    differing = [
        (label, by_value[label.value])
        for label in truth
        if label.name.casefold() != by_value[label.value].name.casefold()
    ]
    if differing:
        raise UserInputError(
            "the ground truth and the model use the same values for different labels.",
            seen=f"{shown([label for label, _ in differing])} in the cohort index",
            expected=f"{shown([label for _, label in differing])}, as in the model card",
            do="declare the labels of the cohort with --labels of check, with the names of the model, if they mean the same; "
            "otherwise change the values of the ground truth",
        )
