"""The section about gate: figures of each model with their differences from float32, of segmentations and classifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.gate import (
    GateClassComparison,
    GateClassFigures,
    GateClassTolerances,
    GateComparison,
    GateDecision,
    GateFigures,
    GateSpeed,
)
from medweave_core.contracts.model import RUNTIME_TITLES, Runtime
from medweave_steps.report.words import NO_INTERVAL, figure, interval, mib, signed

Figures = GateClassFigures | GateFigures
Comparison = GateClassComparison | GateComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a table: a figure, and the small text below it."""

    value: str
    more: str = ""


def gate_columns(decision: GateDecision) -> tuple[str, ...]:
    """Return the names of the figures that the tables have, in their order."""
    if isinstance(decision.float32_validation, GateClassFigures):
        return ("Accuracy", "Macro-F1", "Macro-AUC", "Calibration error")
    return ("Dice", "Sensitivity", "False positives per scan")


def gate_rule(decision: GateDecision) -> str:
    """Return the condition on the figures of a candidate."""
    limits = decision.tolerances
    if isinstance(limits, GateClassTolerances):
        of_auc = "" if limits.macro_auc is None else f", and above −{limits.macro_auc} for macro-AUC"
        return (
            f"the intervals of the differences lie above −{limits.accuracy} for accuracy and above "
            f"−{limits.macro_f1} for macro-F1{of_auc}"
        )
    return (
        f"the interval of the Dice difference lies above −{limits.dice}, sensitivity falls by at most {limits.sensitivity}, and "
        f"false positives per scan rise by at most {limits.false_positives_per_scan}"
    )


def gate_rows(decision: GateDecision) -> list[dict[str, Any]]:
    """Return one row per model that the gate measured; below the figures is candidate minus float32, with its 95 % interval."""
    base = {"name": _title("float32", decision.float32_runtime), "verdict": "reference", "reasons": ()}
    rows = [base | {"cells": [*_figures(decision.float32_validation), *_speed(decision.float32_speed)]}]
    for candidate in decision.candidates:
        is_chosen = candidate.is_accepted and gate_choice(decision) == _title(candidate.name, candidate.runtime)
        verdict = "accepted" if is_chosen else "not chosen" if candidate.is_accepted else "refused"
        cells = [*_compared(candidate.validation, len(gate_columns(decision))), *_speed(candidate.speed)]
        name = _title(candidate.name, candidate.runtime)
        rows.append({"name": name, "verdict": verdict, "reasons": candidate.reasons, "cells": cells})
    return rows


def gate_choice(decision: GateDecision) -> str:
    """Return the accepted model and its runtime, in words."""
    return _title(decision.chosen or decision.precision, decision.runtime)


def _title(name: str, runtime: Runtime) -> str:
    return f"{name} ({RUNTIME_TITLES[runtime]})"


def gate_test_rows(decision: GateDecision) -> list[dict[str, Any]]:
    """Return the models' figures on the test split, which had no part in the decision."""
    if decision.float32_test is None:
        return []
    name, columns = _title("float32", decision.float32_runtime), len(gate_columns(decision))
    rows: list[dict[str, Any]] = [{"name": name, "cells": _figures(decision.float32_test)}]
    rows += [
        {"name": _title(one.name, one.runtime), "cells": _compared(one.test, columns)}
        for one in decision.candidates
        if one.test is not None
    ]
    return rows


def _figures(seen: Figures) -> list[Cell]:
    if isinstance(seen, GateClassFigures):
        of_classes = (seen.accuracy, seen.macro_f1, seen.macro_auc, seen.expected_calibration_error)
        return [Cell(value=figure(value, 3)) for value in of_classes]
    values = (figure(seen.dice_mean, 3), figure(seen.lesion_sensitivity, 3), figure(seen.false_positives_per_scan))
    return [Cell(value=value) for value in values]


def _compared(comparison: Comparison | None, columns: int) -> list[Cell]:
    if comparison is None:
        return [Cell(value="–")] * columns
    if isinstance(comparison, GateClassComparison):
        auc = () if comparison.macro_auc is None else ((comparison.macro_auc, 3),)
        differences = [(comparison.accuracy, 3), (comparison.macro_f1, 3), *auc]
    else:
        sensitivity, false_positives = comparison.lesion_sensitivity, comparison.false_positives_per_scan
        differences = [(comparison.dice, 3), (sensitivity, 3), (false_positives, 2)]
    cells = _figures(comparison.figures)
    for place, (difference, digits) in enumerate(differences):
        bounds = interval((difference.lower, difference.upper), digits)
        more = signed(difference.value, digits) + (f" ({bounds})" if bounds != NO_INTERVAL else "")
        cells[place] = Cell(value=cells[place].value, more=more)
    return cells


def _speed(speed: GateSpeed | None) -> list[Cell]:
    if speed is None:
        return [Cell(value="–")] * 3
    bounds = speed.interval or speed.speedup_quartiles
    return [
        Cell(value=f"{speed.seconds_per_volume:.2f} s"),
        Cell(value=f"{speed.speedup:.2f} ×", more=interval(bounds) if bounds != (1.0, 1.0) else ""),
        Cell(value=mib(speed.model_bytes), more=f"{speed.size_ratio:.0%}" if speed.size_ratio != 1 else ""),
    ]
