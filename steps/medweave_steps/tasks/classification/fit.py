"""The check that cases match the input contract of a classification model's card, before the model is opened."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.classes import check_classes
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import Triple, VolumeInfo, are_signals, is_table
from medweave_core.errors import UserInputError
from medweave_steps.io.model.input_check import check_channels, check_inputs, misfit
from medweave_steps.tasks.classification.outputs import ClassTargets


def refuse_table(cohort: PreparedCohort, *, what: str) -> None:
    """Refuse rows of a table where only images and volumes can be used.

    Args:
        what: cannot be done with rows, such as `explained`.
    Raises:
        UserInputError: the cases are rows of a table.
    """
    if is_table(cohort.channels):
        raise UserInputError(
            f"rows of a table cannot be {what}.",
            seen=f"{len(cohort.channels)} features of a table (cohort.json)",
            expected="images or volumes",
            do="leave out this step for tables: train, export, classify, evaluate and report take them",
        )


def refuse_signals(cohort: PreparedCohort, *, what: str) -> None:
    """Refuse samples of an ECG where only images and volumes can be used, as `refuse_table`.

    Raises:
        UserInputError: the cases are samples of an ECG.
    """
    if are_signals(cohort.channels):
        raise UserInputError(
            f"samples of an ECG cannot be {what}.",
            seen=f"channel {cohort.channels[0]} (cohort.json)",
            expected="images or volumes",
            do="leave out this step for ECG recordings: train, export, gate, classify, evaluate and report take them",
        )


def check_fits(card: ModelCard, cohort: PreparedCohort, infos: Sequence[VolumeInfo]) -> None:
    """Compare the model's classes and input contract with every case of a batch, before any work is done.

    Raises:
        UserInputError: the model does not classify; its classes and thresholds contradict each other; or a case does not fit: the
            first one and what differs are named.
    """
    if card.task_name != "classification" or not card.classes:
        raise UserInputError(
            f"the model '{card.name}' does not classify.",
            seen=f"task {card.task_name}, {len(card.classes)} classes (model_card.json)",
            expected="a model of the task classification, with its classes",
            do="run `medweave-step segment` with a segmentation model, or train one with --task classification",
        )
    check_classes(card.classes)
    ClassTargets.of(card).thresholds(card.postprocessing)
    check_channels(card, cohort)
    check_inputs(card, cohort, infos)
    for info in infos:
        if info.grid.shape != card.input.patch_shape:
            raise misfit(
                card,
                info.case_id,
                f"{_shown(info.grid.shape)} voxels (volume_info.json)",
                f"{_shown(card.input.patch_shape)} voxels: the network takes the whole image (model_card.json, input)",
            )


def _shown(shape: Triple) -> str:
    return " x ".join(map(str, shape))
