"""The figures of a classification, pooled and by class, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.classification_evaluation import (
    ClassCaseFigures,
    ClassFigures,
    ClassificationEvaluation,
    ColorBaseline,
    CovariateFigures,
    RecordingEvaluation,
    RecordingFigures,
)
from medweave_steps.evaluate.classified.baseline import FittedBaseline
from medweave_steps.evaluate.classified.cases import KnownCase, KnownCases, samples_of_recordings
from medweave_steps.evaluate.classified.covariates import Groups
from medweave_steps.metrics import bootstrap
from medweave_steps.metrics.classification import (
    METRICS,
    Metric,
    Predictions,
    areas_by_class,
    average_precision,
    confusion_matrix,
    f1_by_class,
    macro_f1,
    roc_auc,
    sensitivity_by_class,
    specificity_by_class,
)
from medweave_steps.tasks.classification.outputs import BoolArray, ClassTargets
from medweave_steps.tasks.classification.recordings import mean_probabilities

Figures = dict[str, Any]

_BY_CLASS: Mapping[str, Callable[[Predictions], list[float | None]]] = {
    "sensitivity": sensitivity_by_class,
    "specificity": specificity_by_class,
    "f1": f1_by_class,
    "roc_auc": lambda predictions: areas_by_class(predictions, roc_auc),
    "average_precision": lambda predictions: areas_by_class(predictions, average_precision),
}
_LEAST = 5e-7
"""Half of the last decimal that `classify` writes: a written 0 is a probability below it, and 0 itself has no finite log loss."""
_OF_BASELINE = {name: METRICS[name] for name in ("accuracy", "balanced_accuracy", "macro_f1")}
_OF_GROUP = {"accuracy": METRICS["accuracy"]}


def summarize(
    known: KnownCases,
    *,
    baseline: FittedBaseline | None,
    compared: BoolArray | None = None,
    synthetic: bool,
    seed: int,
    num_resamples: int,
    groups: Groups | None = None,
) -> ClassificationEvaluation:
    """Return the figures of all cases.

    Args:
        compared: classes that the baseline predicts for the cases, [N, C]; None without a baseline.
        synthetic: as stated by the cohort index, or the batches of a table.
        seed, num_resamples: of the bootstrap; all intervals see the same draws of patients.
        groups: places of the cases by covariate and group; None without covariates.
    """
    targets = known.targets
    seen = _predictions(known.cases, targets)
    patients = [case.entry.patient_key for case in known.cases]
    draws = {"seed": seed, "patients": patients, "num_resamples": num_resamples}
    pooled, by_class = _figures(seen, targets, draws)
    return ClassificationEvaluation(
        synthetic=synthetic,
        patients=len(set(patients)),
        cases=len(known.cases),
        is_multi_label=targets.is_multi_label,
        classes=targets.classes,
        by_class=by_class,
        confusion_matrix=() if targets.is_multi_label else _rows(confusion_matrix(seen)),
        bootstrap={"seed": float(seed), "num_resamples": float(num_resamples), "level": bootstrap.LEVEL},
        baseline=_of_baseline(baseline, seen, compared, draws) if baseline and compared is not None else None,
        cases_without_ground_truth=known.without_truth,
        by_covariate=_of_covariates(groups or {}, seen, draws),
        by_recording=_of_recordings(known, draws),
        per_case=tuple(
            _case_figures(case, targets, None if compared is None else targets.named(compared[place]))
            for place, case in enumerate(known.cases)
        ),
        **pooled,
    )


def _predictions(cases: Sequence[KnownCase], targets: ClassTargets) -> Predictions:
    names = targets.names
    return Predictions(
        truth_NC=np.array([[name in case.truth for name in names] for case in cases]),
        decided_NC=np.array([[name in case.classified.classes for name in names] for case in cases]),
        probability_NC=np.clip(
            [[case.classified.probabilities[name] for name in names] for case in cases], _LEAST, 1 - _LEAST
        ),
        is_multi_label=targets.is_multi_label,
    )


def _figures(
    seen: Predictions, targets: ClassTargets, draws: Figures, metrics: Mapping[str, Metric] = METRICS
) -> tuple[Figures, tuple[ClassFigures, ...]]:
    """Return the fields of the pooled figures with their intervals, and the figures of each class."""
    values, intervals = _with_intervals(seen, metrics, draws)
    pooled = _paired(metrics, values, intervals)
    place = len(metrics)
    of_class: list[Figures] = [{} for _ in targets.names]
    for name in _BY_CLASS:
        for figures in of_class:
            figures |= _paired([name], values[place : place + 1], intervals[place : place + 1])
            place += 1
    return pooled, tuple(
        ClassFigures(name=name, **_counts(seen, number), **figures)
        for number, (name, figures) in enumerate(zip(targets.names, of_class, strict=True))
    )


def _with_intervals(
    seen: Predictions, pooled: Mapping[str, Metric], draws: Figures, *, by_class: bool = True
) -> tuple[list[float], list[tuple[float, float]]]:
    """Return pooled metrics, then the metrics of each class, in the order of `_BY_CLASS`; and their intervals on the same draws."""

    def statistics(rows: npt.NDArray[np.float64]) -> list[float]:
        drawn = seen.with_rows(rows)
        values = [metric(drawn) for metric in pooled.values()]
        for metric in _BY_CLASS.values() if by_class else ():
            values += metric(drawn)
        return [math.nan if value is None else value for value in values]

    return statistics(seen.rows), bootstrap.confidence_intervals(seen.rows, statistics, **draws)


def _paired(names: Any, values: Sequence[float], intervals: Sequence[tuple[float, float]]) -> Figures:
    """Return each figure under its name and its interval under the name with `_ci`; six decimals, None where not defined."""
    fields: Figures = {}
    for name, value, (low, high) in zip(names, values, intervals, strict=False):
        fields[name] = None if math.isnan(value) else round(value, 6)
        fields[f"{name}_ci"] = None if math.isnan(low) else (round(low, 6), round(high, 6))
    return fields


def _counts(seen: Predictions, place: int) -> Figures:
    truth, decided = seen.truth_NC[:, place], seen.decided_NC[:, place]
    return {
        "cases": int(truth.sum()),
        "predicted_cases": int(decided.sum()),
        "true_positives": int((truth & decided).sum()),
        "false_positives": int((~truth & decided).sum()),
        "false_negatives": int((truth & ~decided).sum()),
        "true_negatives": int((~truth & ~decided).sum()),
    }


def _rows(matrix: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(count) for count in row) for row in matrix)


def _of_baseline(baseline: FittedBaseline, seen: Predictions, decided_NC: BoolArray, draws: Figures) -> ColorBaseline:
    own = Predictions(
        truth_NC=seen.truth_NC,
        decided_NC=decided_NC,
        probability_NC=decided_NC.astype(np.float64),
        is_multi_label=seen.is_multi_label,
    )
    fields = _paired(_OF_BASELINE, *_with_intervals(own, _OF_BASELINE, draws, by_class=False))
    return ColorBaseline(bins=baseline.bins, training_cases=baseline.training_cases, rule=baseline.rule, **fields)


def _of_covariates(groups: Groups, seen: Predictions, draws: Figures) -> tuple[CovariateFigures, ...]:
    figures = []
    for covariate, by_group in groups.items():
        for group, places in by_group.items():
            patients = [draws["patients"][place] for place in places]
            own, own_draws = seen.with_rows(seen.rows[list(places)]), {**draws, "patients": patients}
            fields = _paired(_OF_GROUP, *_with_intervals(own, _OF_GROUP, own_draws, by_class=False))
            figures.append(
                CovariateFigures(
                    covariate=covariate, group=group, cases=len(places), patients=len(set(patients)), **fields
                )
            )
    return tuple(figures)


def _of_recordings(known: KnownCases, draws: Figures) -> RecordingEvaluation | None:
    """Return the figures of the recordings that the cases are samples of; None for other cases."""
    targets, samples = known.targets, samples_of_recordings(known)
    if not samples:
        return None
    probability_RC = np.array(
        [
            mean_probabilities([one.classified.probabilities for one in of_recording], targets.names)
            for of_recording in samples.values()
        ]
    )
    predicted_R = probability_RC.argmax(axis=1)
    truth_R = np.array([targets.names.index(of_recording[0].truth[0]) for of_recording in samples.values()])
    places = np.arange(len(targets.names))
    seen = Predictions(
        truth_NC=truth_R[:, None] == places,
        decided_NC=predicted_R[:, None] == places,
        probability_NC=np.clip(probability_RC, _LEAST, 1 - _LEAST),
        is_multi_label=False,
    )
    scored = [place for place, one in enumerate(targets.classes) if one.is_scored]
    metrics = {"macro_f1": lambda drawn: macro_f1(drawn, scored), "accuracy": METRICS["accuracy"]}
    patients = [of_recording[0].entry.patient_key for of_recording in samples.values()]
    pooled, by_class = _figures(seen, targets, {**draws, "patients": patients}, metrics)
    return RecordingEvaluation(
        recordings=len(samples),
        scored_classes=tuple(targets.names[place] for place in scored),
        by_class=by_class,
        confusion_matrix=_rows(confusion_matrix(seen)),
        per_recording=tuple(
            RecordingFigures(
                recording=recording,
                samples=len(of_recording),
                class_name=targets.names[truth_R[row]],
                predicted=targets.names[predicted_R[row]],
                probabilities={
                    name: round(float(value), 6) for name, value in zip(targets.names, probability_RC[row], strict=True)
                },
            )
            for row, (recording, of_recording) in enumerate(samples.items())
        ),
        **pooled,
    )


def _case_figures(
    case: KnownCase, targets: ClassTargets, baseline_predicted: tuple[str, ...] | None
) -> ClassCaseFigures:
    probabilities = case.classified.probabilities
    of_truth = [probabilities[name] if name in case.truth else 1 - probabilities[name] for name in targets.names]
    if not targets.is_multi_label:
        of_truth = [probabilities[name] for name in case.truth]
    return ClassCaseFigures(
        case_id=case.entry.case_id,
        patient_key=case.entry.patient_key,
        classes=case.truth,
        predicted=case.classified.classes,
        is_correct=set(case.truth) == set(case.classified.classes),
        true_probability=round(min(of_truth), 6),
        probabilities=probabilities,
        baseline_predicted=baseline_predicted,
    )
