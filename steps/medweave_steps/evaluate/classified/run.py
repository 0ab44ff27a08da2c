"""`evaluate` for classifications: from the folders to the files and the figures of the run report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.classification_evaluation import ClassificationEvaluation
from medweave_core.contracts.cohort import CaseEntry, CohortIndex
from medweave_core.contracts.volume import are_images, are_signals
from medweave_core.errors import UserInputError
from medweave_steps.evaluate.classified.baseline import (
    FittedBaseline,
    fit_baseline,
    fit_table_baseline,
    histograms,
)
from medweave_steps.evaluate.classified.cases import KnownCases, known_cases
from medweave_steps.evaluate.classified.covariates import UNKNOWN, covariate_groups
from medweave_steps.evaluate.classified.rows import known_rows
from medweave_steps.evaluate.classified.summary import summarize
from medweave_steps.evaluate.classified.tables import per_case_csv, per_class_csv
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory, write_text
from medweave_steps.tasks.classification.outputs import BoolArray, ClassTargets

MOST_CASES = 10_000
"""Cases that a run report lists; a table can have more, and per_case.csv has them all."""


def evaluate_classes(
    index: CohortIndex,
    folders: Sequence[Path],
    batches: Sequence[Path],
    output: Path,
    context: StepContext,
    *,
    training_set: Path | None,
    seed: int,
    num_resamples: int,
    covariates: Sequence[Path] = (),
) -> Mapping[str, Any]:
    """Write metrics.json, per_case.csv and per_class.csv, and return the figures of the run report.

    Args:
        folders: outputs of `classify`.
        batches: prepared batches that were classified.
        training_set: prepared cases that the baseline is fitted on; None for no baseline.
        seed, num_resamples: of the bootstrap.
        covariates: tables with sex, age or mmse of the cases; empty for no figures by covariate.
    """
    known = known_cases(index, folders, batches)
    groups = covariate_groups(covariates, [case.entry for case in known.cases if isinstance(case.entry, CaseEntry)])
    if covariates and not groups:
        context.notice("no accuracy by covariate: the table of --covariates has none of the columns sex, age and mmse.")
    baseline = _baseline(index, training_set, known.targets, context)
    evaluation = summarize(
        known,
        baseline=baseline,
        compared=_baseline_classes(baseline, known) if baseline else None,
        synthetic=index.synthetic,
        seed=seed,
        num_resamples=num_resamples,
        groups=groups,
    )
    return _write(evaluation, output, context)


def evaluate_rows(
    folders: Sequence[Path],
    batches: Sequence[Path],
    output: Path,
    context: StepContext,
    *,
    training_set: Path | None,
    seed: int,
    num_resamples: int,
) -> Mapping[str, Any]:
    """Evaluate rows of a table, as `evaluate_classes`; the batches have the known classes, and the baseline sees all columns."""
    known, rows = known_rows(folders, batches)
    baseline = compared = None
    if training_set is None:
        context.notice("no baseline: no training set to fit it on. Do: give --training-set.")
    else:
        baseline = fit_table_baseline(_same_table(training_set, batches[0]), known.targets, seed=seed)
        compared = baseline.decided(rows)
    synthetic = any(open_prepared(folder).cohort.synthetic for folder in batches)
    evaluation = summarize(
        known, baseline=baseline, compared=compared, synthetic=synthetic, seed=seed, num_resamples=num_resamples
    )
    return _write(evaluation, output, context)


def _write(evaluation: ClassificationEvaluation, output: Path, context: StepContext) -> Mapping[str, Any]:
    with atomic_directory(output) as folder:
        write_text(folder / "metrics.json", codec.dumps(evaluation))
        write_text(folder / "per_case.csv", per_case_csv(evaluation))
        write_text(folder / "per_class.csv", per_class_csv(evaluation))
    _announce(evaluation, context)
    figures: dict[str, Any] = codec.to_json(evaluation)
    for case in figures.pop("per_case"):
        if len(evaluation.per_case) <= MOST_CASES:
            context.add_case(case.pop("case_id"), **case)
    return {name: value for name, value in figures.items() if name not in ("evaluation_version", "data_class")}


def _baseline_classes(baseline: FittedBaseline, known: KnownCases) -> BoolArray:
    return baseline.decided(histograms([case.prepared for case in known.cases], baseline.rule))


def _same_table(training_set: Path, batch: Path) -> PreparedFolder:
    prepared = open_prepared(training_set)
    if prepared.cohort.channels != open_prepared(batch).cohort.channels:
        raise UserInputError(
            "the training set of the baseline has other features than the classified rows.",
            seen=f"{len(prepared.cohort.channels)} features of other names or in another order (cohort.json)",
            expected="the training set of the same encode-table",
            do="use the training set that was encoded with these rows",
        )
    return prepared


def _baseline(
    index: CohortIndex, training_set: Path | None, targets: ClassTargets, context: StepContext
) -> FittedBaseline | None:
    if training_set is None:
        if are_images(index.channels) or are_signals(index.channels):
            context.notice("no histogram baseline: no training set to fit it on. Do: give --training-set.")
        return None
    prepared = open_prepared(training_set)
    if not (are_images(index.channels) or are_signals(index.channels)):
        context.notice("no histogram baseline: it is for photographs, radiographs and ECG, and the cases are volumes.")
        return None
    if prepared.cohort.channels != index.channels:
        raise UserInputError(
            "the training set of the baseline has other channels than the classified cases.",
            seen=f"channels {', '.join(prepared.cohort.channels)} (cohort.json)",
            expected=f"channels {', '.join(index.channels)}, as in the cohort index",
            do="use the training set that was preprocessed with these cases",
        )
    return fit_baseline(prepared, targets)


def _announce(evaluation: ClassificationEvaluation, context: StepContext) -> None:
    if evaluation.synthetic:
        context.notice("synthetic data: these results say nothing about performance on patients.")
    if evaluation.baseline is not None:
        own, baseline = (_shown(value.accuracy) for value in (evaluation, evaluation.baseline))
        context.notice(
            f"accuracy {own}; baseline ({evaluation.baseline.rule}) {baseline}, on the same {evaluation.cases} cases."
        )
    # Figures by group are not logged: a group of one case would show the covariate of this case.
    for one in evaluation.by_covariate:
        if one.group == UNKNOWN:
            context.notice(
                f"{one.cases} of {evaluation.cases} cases have no {one.covariate} in the table of covariates."
            )
    absent = [one.name for one in evaluation.by_class if not one.cases]
    if absent:
        context.notice(f"no evaluated case has the class {', '.join(absent)}: figures that need one are left out.")
    count = len(evaluation.cases_without_ground_truth)
    if count:
        context.notice(f"{count} {'case has' if count == 1 else 'cases have'} no known class and therefore no metrics.")


def _shown(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3f}"
