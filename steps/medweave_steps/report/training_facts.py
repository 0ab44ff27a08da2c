"""The facts about the training that the report shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.energy import CountedEnergy
from medweave_core.contracts.progress import duration
from medweave_steps.report.gather import Material, RunMaterial


def training_facts(material: Material) -> list[tuple[str, str]]:
    """Return the facts of the training of a segmentation, with its figures on the validation split."""
    last = material.results_of("train-distributed") or material.results_of("train")
    chosen, metrics = last.get("postprocessing", {}), last.get("metrics", {})
    facts = [
        ("Validation Dice", _known(metrics.get("validation_dice"), 3)),
        ("Validation sensitivity", _known(metrics.get("validation_sensitivity"), 3)),
        ("Validation false positives", _known(metrics.get("validation_false_positives_per_scan"), 2, " per scan")),
        ("Thresholds selected on the validation split", _thresholds_of(chosen, material) if chosen else None),
    ]
    return [*run_facts(material), *((name, text) for name, text in facts if text is not None)]


def run_facts(material: RunMaterial, *, unit: str = "patches") -> list[tuple[str, str]]:
    """Return how the training ran, from the run reports of train and, if it ran, of train-distributed.

    Args:
        unit: what the network trains on, in plural.
    """
    first, further = material.results_of("train"), material.results_of("train-distributed")
    known = first.get("training", {})
    facts = [
        ("Strategy", _strategy_of(known)),
        ("Seed", known.get("seed")),
        ("Cases", _cases_of(known)),
        ("Steps", _steps_of(known)),
        ("Time", f"{duration(known['seconds'])} on {known.get('num_threads')} threads" if "seconds" in known else None),
        ("Throughput", _pace_of(known, unit)),
        ("Energy", _energy_of(known)),
        ("Continued training", _rounds_of(further.get("training", {}))),
        ("Throughput of continued training", _pace_of(further.get("training", {}), unit)),
        ("Energy of continued training", _energy_of(further.get("training", {}))),
    ]
    return [(name, str(value)) for name, value in facts if value is not None]


def _thresholds_of(chosen: Mapping[str, Any], material: Material) -> str:
    """Return threshold and filters of the model, for each label or region where it has several."""
    by_output = chosen.get("by_output")
    if not by_output:
        return _threshold_text(chosen, has_threshold=True)
    has_threshold = bool(material.regions)  # of exclusive labels the most probable one counts
    texts = [f"{name}: {_threshold_text(one, has_threshold=has_threshold)}" for name, one in by_output.items()]
    return "; ".join(texts)


def _threshold_text(chosen: Mapping[str, Any], *, has_threshold: bool) -> str:
    voxel = f"voxel probability {chosen['threshold']:g}; " if has_threshold else ""
    return f"{voxel}lesion peak probability {chosen.get('min_peak', 0):g} and volume {chosen['min_volume_mm3']:g} mm³"


def _cases_of(known: Mapping[str, Any]) -> str | None:
    if "num_training_cases" not in known:
        return None
    lesions = f" with {known['num_training_lesions']} lesions" if "num_training_lesions" in known else ""
    return f"{known['num_training_cases']} for training{lesions}, {known.get('num_validation_cases')} for validation"


def _strategy_of(known: Mapping[str, Any]) -> str | None:
    ranks = known.get("world_size", 1)
    return f"{known.get('strategy')}, {ranks} ranks" if ranks > 1 else known.get("strategy")


def _pace_of(known: Mapping[str, Any], unit: str) -> str | None:
    """Return throughput, share of the time spent waiting for data, and bytes that ranks exchanged, as text; None if unknown."""
    if not known.get("step_seconds") or "data_wait_seconds" not in known:
        return None
    waited = known["data_wait_seconds"] / known["step_seconds"]
    exchanged = known.get("synchronised_bytes", 0)
    sent = f"; {exchanged / 2**20:,.1f} MiB exchanged for averaging by all ranks" if exchanged else ""
    return f"{known['patches_per_second']:,.1f} {unit} per second; {waited:.1%} of the time waiting for data{sent}"


def _energy_of(known: Mapping[str, Any]) -> str | None:
    if "energy" not in known:
        return None
    return codec.from_json(CountedEnergy, known["energy"], where="the energy of the training").describe()


def _rounds_of(known: Mapping[str, Any]) -> str | None:
    if "rounds" not in known:
        return None
    rounds = f"{known['rounds']} rounds of {known['steps_per_round']} steps by {known['replicas']} replicas"
    best = f"best after round {known['best_round']}" if known["best_round"] else "no round improved on the input model"
    return f"{rounds}, engine {known['engine']}; {best}; {duration(known['seconds'])}"


def _steps_of(known: Mapping[str, Any]) -> str | None:
    if "steps_done" not in known:
        return None
    early = ", stopped early" if known.get("stopped_early") else ""
    seconds = known.get("best_seconds")
    after = "" if seconds is None else f" after {duration(seconds)}"
    return f"{known['steps_done']}, best weights at step {known.get('best_step')}{after}{early}"


def _known(value: Any, digits: int, unit: str = "") -> str | None:
    return None if value is None else f"{value:.{digits}f}{unit}"
