"""The check that volumes match the input contract of a model's card, before the model is opened."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.labels import check_regions, shown
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import VolumeInfo
from medweave_core.errors import UserInputError
from medweave_steps.inference.head import OutputHead
from medweave_steps.io.model.input_check import check_channels, check_inputs, misfit
from medweave_steps.networks import multiples_of, multiples_text


def check_fits(card: ModelCard, cohort: PreparedCohort, infos: Sequence[VolumeInfo]) -> None:
    """Compare the model's input contract with every case of a batch, before any work is done.

    Raises:
        UserInputError: one does not fit, and the first such case and what differs are named; the card's labels, regions and filters
            contradict each other; the model does not segment.
    """
    _check_outputs(card)
    check_channels(card, cohort)
    sides, multiples = card.input.patch_shape, multiples_of(card)
    if any(side < 1 or side % multiple for side, multiple in zip(sides, multiples, strict=True)):
        raise misfit(
            card,
            "its own architecture",
            f"patch shape {sides} (model_card.json, input)",
            f"sizes that are multiples of {multiples_text(multiples)}",
        )
    check_inputs(card, cohort, infos)


def _check_outputs(card: ModelCard) -> None:
    if card.classes:
        raise UserInputError(
            f"the model '{card.name}' does not segment.",
            seen=f"task {card.task_name}, classes {', '.join(card.output_names)} (model_card.json)",
            expected="a model of the task segmentation",
            do="run `medweave-step classify` with this model",
        )
    labels, head = card.foreground_labels, OutputHead.of(card)
    head.filters_of(card.postprocessing)
    if card.output.regions:
        check_regions(card.output.regions, labels)
    values = [label.value for label in card.labels]
    is_ambiguous = head.is_binary and len(labels) > 1 and not card.output.regions
    if values == sorted(set(values)) and not is_ambiguous:
        return
    raise UserInputError(
        f"the labels of the model '{card.name}' do not match its output.",
        seen=f"labels {shown(labels)} and an output of one logit" if is_ambiguous else f"labels {shown(card.labels)}",
        expected="one label for one logit, or an output with a channel for each label or region"
        if is_ambiguous
        else "different values, in ascending order",
        do="train the model again; do not edit model_card.json by hand",
    )
