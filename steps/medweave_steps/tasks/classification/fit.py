"""The check that cases match the input contract of a classification model's card, before the model is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medweave_core.contracts.classes import check_classes
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import Modality, Triple, VolumeInfo, modality_of
from medweave_core.errors import UserInputError
from medweave_steps.io.model.input_check import check_channels, check_inputs, misfit
from medweave_steps.tasks.classification.outputs import ClassTargets

TABLES: Mapping[Modality, str] = {"TABLE": "rows of a table"}
NO_PICTURES: Mapping[Modality, str] = {**TABLES, "ECG": "samples of an ECG"}


def refuse_modalities(cohort: PreparedCohort, refused: Mapping[Modality, str], *, what: str) -> None:
    """Refuse cases that a step has no meaning for.

    Args:
        refused: modalities, and what their cases are called, such as `NO_PICTURES`.
        what: cannot be done with them, such as `explained`.
    Raises:
        UserInputError: the cases have one of these modalities.
    """
    modality = modality_of(cohort.channels)
    if modality in refused:
        raise UserInputError(
            f"{refused[modality]} cannot be {what}.",
            seen=f"modality {modality}, {len(cohort.channels)} channels (cohort.json)",
            expected="images or volumes",
            do="leave out this step: train, export, classify, evaluate and report take these cases",
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
