"""How well a segmentation agrees with the truth of a prepared case: Dice and lesions of each label or region.

Suffix legend: C channel, I J K voxel axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.gate import GateCase, GateLabelCase
from medweave_core.contracts.labels import Label, declared_or_lesion, distinct_names, shown
from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UserInputError
from medweave_steps.inference.components import filter_outputs
from medweave_steps.inference.head import OutputHead
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.metrics.lesions import match_lesions
from medweave_steps.metrics.masks import BoolArray
from medweave_steps.metrics.overlap import dice
from medweave_steps.tasks.segmentation.targets import Targets

FloatArray = npt.NDArray[np.float32]


def decisions(logits_BCIJK: FloatArray, card: ModelCard) -> npt.NDArray[np.int64]:
    """Return what a model decides in each voxel before the component filters, int64 [B, I, J, K].

    Softmax: the place of the most probable channel. Otherwise a bit for each channel: if its probability reaches the threshold.
    """
    if card.output.activation == "softmax":
        return np.asarray(logits_BCIJK.argmax(axis=1), np.int64)
    decided = np.zeros(np.delete(logits_BCIJK.shape, 1), np.int64)
    for channel, one in enumerate(OutputHead.of(card).filters_of(card.postprocessing)):
        decided = decided * 2 + (logits_BCIJK[:, channel] >= math.log(one.threshold / (1 - one.threshold)))
    return decided


def check_truth(cohort: PreparedCohort, card: ModelCard) -> None:
    """Refuse a cohort whose labels are not those that the model predicts.

    A model with one label is judged on any cohort with one label, whatever its value and name.

    Raises:
        UserInputError: values or names differ; the message gives both.
    """
    seen, expected = (declared_or_lesion(labels) for labels in (cohort.labels, card.labels))
    if len(seen) == len(expected) == 1 or _by_value(seen) == _by_value(expected):
        return
    raise UserInputError(
        f"the labels of the preprocessed cases are not those of the model '{card.name}'.",
        seen=f"label {shown(seen)} (cohort.json)",
        expected=f"label {shown(expected)} (model_card.json)",
        do="run check and preprocess on the cohort with the labels and the --merge-labels of the training",
    )


def judge_case(folder: CaseFolder, probability_CIJK: FloatArray, card: ModelCard) -> GateCase:
    """Compare one prediction with the case's label, on the prepared grid; voxels without annotation are in neither mask."""
    targets = Targets(head=OutputHead.of(card), ignore_value=folder.ignore_value)
    label_IJK = np.asarray(folder.label_IJK())
    counted = targets.counted(label_IJK)
    cases = []
    for region, predicted in zip(targets.outputs, output_masks(probability_CIJK, card), strict=True):
        reference = targets.reference(label_IJK, region)
        cases.append(_judged(predicted if counted is None else predicted & counted, reference, card))
    names = distinct_names(targets.outputs)
    return GateCase(
        case_id=folder.case.case_id,
        patient_key=folder.case.patient_key,
        dice=sum(case.dice for case in cases) / len(cases),
        lesions=sum(case.lesions for case in cases),
        lesions_hit=sum(case.lesions_hit for case in cases),
        false_positives=sum(case.false_positives for case in cases),
        by_label=dict(zip(names, cases, strict=True)) if len(cases) > 1 else {},
    )


def output_masks(probability_CIJK: FloatArray, card: ModelCard) -> tuple[BoolArray, ...]:
    """Return for each label or region the voxels that belong to it, as `segment` delivers them on the network's grid.

    Args:
        probability_CIJK: as `OutputHead.probabilities` returns it.
    Returns:
        bool [I, J, K] each, without the components that the filters drop; regions may overlap.
    """
    head = OutputHead.of(card)
    filters = head.filters_of(card.postprocessing)
    return filter_outputs(probability_CIJK, head, filters, card.input.spacing_mm).masks


def _judged(predicted: BoolArray, reference: BoolArray, card: ModelCard) -> GateLabelCase:
    match = match_lesions(predicted, reference, spacing_mm=card.input.spacing_mm)
    overlap = dice(predicted, reference)
    return GateLabelCase(
        # Both masks empty: the models agree with the reader that there is nothing.
        dice=1.0 if math.isnan(overlap) else overlap,
        lesions=len(match.reference_hit),
        lesions_hit=sum(match.reference_hit),
        false_positives=match.num_false_positives,
    )


def _by_value(labels: Sequence[Label]) -> dict[int, str]:
    return {label.value: label.name for label in labels}
