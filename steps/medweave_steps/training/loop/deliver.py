"""The end of every training: postprocessing chosen, the model written as a folder that is also a MONAI Bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.model import ModelCard, Postprocessing
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.runtime.verb import StepContext
from medweave_steps.training.loop import validate


def choose(
    context: StepContext,
    validation: Sequence[CaseFolder],
    choices: Sequence[Postprocessing],
    per_case: Sequence[Sequence[validate.Tally]],
    *,
    max_false_positives: float,
) -> tuple[Postprocessing, dict[str, float | None]]:
    """Choose the postprocessing on all validation cases and add the cases' figures to the report.

    Args:
        per_case: for each validation case, the tallies in the order of the choices.
        max_false_positives: per scan.
    Returns:
        the choice, and its figures on the validation split.
    """
    chosen, figures = validate.choose_postprocessing(choices, per_case, max_false_positives=max_false_positives)
    for case, tallied in zip(validation, per_case, strict=True):
        tally = tallied[choices.index(chosen)]
        context.add_case(
            case.case.case_id,
            split="validation",
            dice=None if tally.dice != tally.dice else round(tally.dice, 4),
            lesions=len(tally.hit),
            lesions_found=sum(tally.hit),
            false_positives=tally.num_false_positives,
        )
    false_positives = figures["false_positives_per_scan"] or 0.0
    if false_positives > max_false_positives:
        context.notice(
            f"no combination of threshold, peak probability and volume keeps false positives at {max_false_positives:g} per "
            f"validation scan; the best combination has {false_positives:.2f}."
        )
    return chosen, figures


def metrics_of(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the figures under their names in a model card."""
    return {f"validation_{name}": value for name, value in figures.items()}


def write_model(folder: Path, network: Any, card: ModelCard) -> ModelCard:
    """Write weights, the Bundle's configuration and the card; return the card as written."""
    from medweave_steps.io.model.bundle_files import write_bundle_configs
    from medweave_steps.io.model.folder import write_card
    from medweave_steps.io.model.network import save_weights

    save_weights(folder, network.cpu())
    write_bundle_configs(folder, card)
    return write_card(folder, card)


def results_of(card: ModelCard) -> dict[str, Any]:
    """Return the results about a trained model for the run report."""
    return {
        "postprocessing": {
            "threshold": card.postprocessing.threshold,
            "min_peak": card.postprocessing.min_peak,
            "min_volume_mm3": card.postprocessing.min_volume_mm3,
        },
        "metrics": card.metrics,
        "training": card.training,
        "synthetic_data": card.synthetic_data,
    }
