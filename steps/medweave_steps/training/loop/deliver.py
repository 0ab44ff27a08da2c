"""The end of every training: the model is written as a folder that is also a MONAI Bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.model import ModelCard


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
    filters = card.postprocessing.by_output
    named = zip(card.output_names, filters, strict=True) if filters else ()
    return {
        "postprocessing": {
            "threshold": card.postprocessing.threshold,
            "min_peak": card.postprocessing.min_peak,
            "min_volume_mm3": card.postprocessing.min_volume_mm3,
            **({"by_output": {name: codec.to_json(own) for name, own in named}} if filters else {}),
            **({"temperature": card.postprocessing.temperature} if card.classes else {}),
        },
        "metrics": card.metrics,
        "training": card.training,
        "synthetic_data": card.synthetic_data,
    }
