"""Cross-validation by patient: one training for each fold, validated on the patients of that fold."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts.cohort import PreparedCase, Split
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import PreparedFolder
from medweave_steps.metrics.means import mean_of
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import write_text

TABLE_FILE = "cross_validation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One of the parts into which the patients of a training set are divided.

    Attributes:
        number: from 0.
        total: number of folds.
        seed: of the draw.
    """

    number: int
    total: int
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the fold's folder, such as `fold-0`."""
        return f"fold-{self.number}"


def folds_of(prepared: PreparedFolder, total: int, *, seed: int) -> list[Fold]:
    """Return the folds of a training set.

    Raises:
        UserInputError: there are fewer patients than folds.
    """
    patients = {case.patient_key for case in _drawn(prepared)}
    if len(patients) < total:
        raise UserInputError(
            "the training set has fewer patients than --folds.",
            seen=f"{len(patients)} patient{'' if len(patients) == 1 else 's'} in train and validation",
            expected=f"at least {total}: one patient for the validation of each fold",
            do="reduce --folds, or preprocess more patients",
        )
    return [Fold(number=number, total=total, seed=seed) for number in range(total)]


def with_fold(prepared: PreparedFolder, fold: Fold | None) -> PreparedFolder:
    """Return the training set whose validation split is a fold; the other patients of train and validation are for training.

    All cases of a patient stay together, and the patients of each class are spread evenly over the folds; a patient with images of
    several classes counts for the rarest of them. The draw depends on the patients, the seed and the number of folds only.

    Args:
        fold: None for the splits as `preprocess` drew them.
    """
    if fold is None:
        return prepared
    classes = _class_of_patients(prepared)
    order = sorted(classes, key=lambda key: (classes[key], hashlib.sha256(f"{fold.seed} {key}".encode()).digest()))
    validation = set(order[fold.number :: fold.total])

    def split_of(case: PreparedCase) -> Split:
        if case.split == "test":
            return "test"
        return "validation" if case.patient_key in validation else "train"

    cases = tuple(dataclasses.replace(case, split=split_of(case)) for case in prepared.cohort.cases)
    return dataclasses.replace(prepared, cohort=dataclasses.replace(prepared.cohort, cases=cases))


def _drawn(prepared: PreparedFolder) -> list[PreparedCase]:
    return [case for case in prepared.cohort.cases if case.split != "test"]


def _class_of_patients(prepared: PreparedFolder) -> dict[str, str]:
    """Return the rarest class of each patient; empty without classes."""
    cases = _drawn(prepared)
    frequency = Counter(name for case in cases for name in case.classes or ())
    classes: dict[str, set[str]] = {case.patient_key: set() for case in cases}
    for case in cases:
        classes[case.patient_key].update(case.classes or ())
    return {key: min(names, key=lambda name: (frequency[name], name), default="") for key, names in classes.items()}


def train_folds(
    folds: Sequence[Fold],
    context: StepContext,
    folder: Path,
    train: Callable[[Fold], tuple[Mapping[str, Any], StepContext]],
) -> dict[str, Any]:
    """Train every fold and write the table of the validation figures; return the results for the run report.

    Args:
        folder: that gets the table.
        train: trains one fold, and returns its results and its context.
    """
    rows: list[dict[str, Any]] = []
    energies: list[Any] = []
    progress = context.progress(unit="fold", total=len(folds))
    for fold in folds:
        results, own = train(fold)
        context.take(own)
        energies.append(results["training"]["energy"])
        metrics: Mapping[str, float | None] = results["metrics"]
        validated = len(own.cases)
        rows.append({"fold": fold.number, "model": fold.name, "validation_cases": validated, "metrics": dict(metrics)})
        name, value = next(iter(metrics.items()))
        progress.step(f"{name} {_shown(value)}")
    means = mean_metrics([row["metrics"] for row in rows])
    table = {"seed": folds[0].seed, "folds": rows, "mean": means}
    write_text(folder / TABLE_FILE, json.dumps(table, indent=2, allow_nan=False) + "\n")
    name, value = next(iter(means.items()))
    each = ", ".join(_shown(row["metrics"][name]) for row in rows)
    context.notice(f"{name} of the {len(folds)} folds: {each}; mean {_shown(value)}.")
    return {"metrics": means, "cross_validation": table, "fold_energies": energies}


def mean_metrics(of_folds: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of each metric over the folds in which it is defined; None where it is in none."""
    return {name: mean_of(metrics.get(name) for metrics in of_folds) for name in of_folds[0]}


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
