"""`medweave-step evaluate`: delivered masks or predicted classes against the ground truth, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medweave_core.contracts import codec
from medweave_core.contracts.classifications import RECORD_FILE
from medweave_core.contracts.volume import modality_of
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, open_prepared, read_index
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb

if TYPE_CHECKING:
    from medweave_core.contracts.cohort import CohortIndex
    from medweave_core.contracts.evaluation import Evaluation
    from medweave_steps.evaluate.case import CaseResult, CaseTask
    from medweave_steps.evaluate.compared import ComparedLabels


_VOLUME_MM3, _MR_VOLUME_MM3 = (30.0, 15000.0), (1000.0, 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Options of `evaluate`."""

    cohort: Path | None = option(
        "cohort folder with the ground truth; only for masks: the cohort index has the known classes",
        default=None,
        metavar="DIR",
    )
    cohort_index: Path | None = option(
        "cohort_index.json that check wrote for this cohort; only rows of a table have none: their batches have the known classes",
        default=None, metavar="FILE",
    )  # fmt: skip
    segmentations: tuple[Path, ...] = option("one or more output folders of segment", default=(), metavar="DIR")
    classifications: tuple[Path, ...] = option(
        "one or more output folders of classify, instead of --segmentations", default=(), metavar="DIR"
    )
    case_batches: tuple[Path, ...] = option(
        "one or more preprocessed batches that were segmented or classified: the expected cases, and the input of the baseline",
        metavar="DIR",
    )
    training_set: Path | None = option(
        "training set of preprocess or encode-table; the baseline of a classification is fitted on its training split: logistic "
        "regression on histograms of images or ECG, or on the columns of a table (default: no such baseline)",
        default=None, metavar="DIR",
    )  # fmt: skip
    covariates: tuple[Path, ...] = option(
        "tables (CSV or TSV) with a column that names image, case or patient, and columns sex, age (years) or mmse, such as "
        "participants.tsv: accuracy of a classification by sex, by 10 years of age and by 5 points of MMSE (default: none)",
        default=(), metavar="FILE",
    )  # fmt: skip
    output: Path = option(
        "folder to write: metrics.json, per_case.csv, and lesions.csv for masks or per_class.csv for classes",
        metavar="DIR",
    )
    baseline_threshold_hu: float = option(
        "threshold of the CT baseline, HU; applied inside the lungs for cases cropped to the lungs",
        default=-400.0,
    )
    baseline_threshold_sd: float = option(
        "threshold of the MR and PET baseline, in standard deviations above the mean of the first contrast", default=2.5
    )
    baseline_volume_mm3: tuple[float, float] | None = option(
        "component volumes that the baseline keeps, mm³ (default: 30 15000, spheres of about 4 to 30 mm; MR and PET 1000 1000000)",
        default=None, metavar="LOW HIGH",
    )  # fmt: skip
    bootstrap_seed: int = option("random seed of the bootstrap", default=20260, metavar="S")
    bootstrap_resamples: int = option("number of bootstrap resamples", default=2000)

    def __post_init__(self) -> None:
        self._check_kind()
        low, high = self.baseline_volume_mm3 or _VOLUME_MM3
        if not 0 <= low < high:
            raise UsageError(
                "invalid value of --baseline-volume-mm3.",
                seen=f"{low:g} {high:g}",
                expected="two volumes in mm³, in ascending order",
            )
        if self.bootstrap_resamples < 100:
            raise UsageError(
                "invalid value of --bootstrap-resamples: too small for an interval.",
                seen=str(self.bootstrap_resamples),
                expected="100 or more",
            )

    def _check_kind(self) -> None:
        """Check that the options belong to masks or to classes."""
        if bool(self.segmentations) == bool(self.classifications):
            raise UsageError(
                "evaluate needs masks or classes.",
                seen="both --segmentations and --classifications" if self.segmentations else "neither",
                expected="--segmentations with output folders of segment, or --classifications with those of classify",
            )
        if self.segmentations and self.cohort is None:
            raise UsageError(
                "--cohort is missing.", expected="the cohort folder with the ground truth of --segmentations"
            )
        for name in ("cohort", "baseline_volume_mm3") if self.classifications else ("training_set", "covariates"):
            if getattr(self, name) not in (None, ()):
                raise UsageError(
                    f"--{name.replace('_', '-')} does not apply here.",
                    seen=f"--{name.replace('_', '-')} with --{'classifications' if self.classifications else 'segmentations'}",
                    expected=f"only with --{'segmentations' if self.classifications else 'classifications'}",
                )


def run(config: EvaluateConfig, context: StepContext) -> Mapping[str, Any]:
    """Evaluate the results of all cases and return the figures of the run report."""
    if config.classifications:
        from medweave_steps.evaluate.classified.rows import are_tables
        from medweave_steps.evaluate.classified.run import evaluate_classes, evaluate_rows

        if are_tables(config.case_batches):
            return evaluate_rows(
                config.classifications,
                config.case_batches,
                config.output,
                context,
                training_set=config.training_set,
                seed=config.bootstrap_seed,
                num_resamples=config.bootstrap_resamples,
            )
        return evaluate_classes(
            _index(config),
            config.classifications,
            config.case_batches,
            config.output,
            context,
            training_set=config.training_set,
            seed=config.bootstrap_seed,
            num_resamples=config.bootstrap_resamples,
            covariates=config.covariates,
        )
    return _evaluate_masks(config, context)


def _index(config: EvaluateConfig) -> CohortIndex:
    if config.cohort_index is None:
        raise UsageError("--cohort-index is missing.", expected="cohort_index.json that check wrote for this cohort")
    return read_index(config.cohort_index)


def _evaluate_masks(config: EvaluateConfig, context: StepContext) -> Mapping[str, Any]:
    from medweave_steps.evaluate.case import BaselineRule
    from medweave_steps.evaluate.compared import compare_labels
    from medweave_steps.evaluate.summary import summarise
    from medweave_steps.evaluate.tables import lesions_csv, per_case_csv
    from medweave_steps.runtime.write import atomic_directory, write_text

    assert config.cohort is not None, "the configuration requires it"
    _check_record(config.segmentations)
    index = _index(config)
    compared = compare_labels(index, config.segmentations)
    tasks, without_truth = due_cases(config, index, compared)
    is_ct = modality_of(index.channels) == "CT"
    rule = BaselineRule(
        threshold=config.baseline_threshold_hu if is_ct else config.baseline_threshold_sd,
        is_ct=is_ct,
        inside_lungs=is_ct and all(open_prepared(folder).cohort.crop == "lungs" for folder in config.case_batches),
        volume_mm3=config.baseline_volume_mm3 or (_VOLUME_MM3 if is_ct else _MR_VOLUME_MM3),
    )
    with atomic_directory(config.output) as folder:
        results = _evaluate_all(config.cohort, tasks, rule, context)
        evaluation = summarise(
            results,
            compared=compared,
            rule=rule,
            synthetic=index.synthetic,
            without_ground_truth=without_truth,
            seed=config.bootstrap_seed,
            num_resamples=config.bootstrap_resamples,
        )
        write_text(folder / "metrics.json", codec.dumps(evaluation))
        write_text(folder / "per_case.csv", per_case_csv(evaluation))
        write_text(folder / "lesions.csv", lesions_csv(results, [task.entry for task in tasks], compared.outputs))
    _say(evaluation, context)
    figures = codec.to_json(evaluation)
    for label in figures["by_label"]:
        del label["per_case"]  # metrics.json has them
    for case in figures.pop("per_case"):
        case_id = case.pop("case_id")
        context.add_case(case_id, **case)
    return {name: value for name, value in figures.items() if name not in ("evaluation_version", "data_class")}


def due_cases(config: EvaluateConfig, index: CohortIndex, compared: ComparedLabels) -> tuple[list[CaseTask], list[str]]:
    """Return the cases to compare, in the order of the case batches, and the ids of those without a ground truth.

    Raises:
        UserInputError: a prepared case was not segmented, or is not in the index; a mask belongs to no prepared case; no
            case has a ground truth.
    """
    from medweave_steps.evaluate.case import CaseTask
    from medweave_steps.evaluate.delivered import find_masks
    from medweave_steps.evaluate.same_run import check_same_run
    from medweave_steps.io.cohort.source import MaskValues

    entries = {entry.case_id: entry for entry in index.cases}
    prepared = _prepared_cases(config)
    masks = find_masks(config.segmentations)
    check_same_run(entries.keys(), prepared.keys(), masks.keys())
    without_truth = [case_id for case_id in prepared if entries[case_id].ground_truth is None]
    values = MaskValues.of(index)
    tasks = [
        CaseTask(entry=entries[case_id], compared=compared, values=values, prepared=case, mask_folder=masks[case_id])
        for case_id, case in prepared.items()
        if case_id not in without_truth
    ]
    if not tasks:
        raise UserInputError(
            "no case has a ground truth to compare with.",
            seen=f"{len(without_truth)} cases, none with a ground truth",
            expected="at least one case with a ground-truth mask",
            do="add ground-truth masks to the cohort, or skip evaluate: the segmentations are complete without it",
        )
    return tasks, without_truth


def _check_record(folders: Sequence[Path]) -> None:
    if any((folder / RECORD_FILE).is_file() for folder in folders):
        raise UserInputError(
            "a folder of --segmentations has classifications.",
            seen=RECORD_FILE,
            expected="output folders of segment",
            do="give the output folders of classify with --classifications",
        )


def _prepared_cases(config: EvaluateConfig) -> dict[str, CaseFolder]:
    cases: dict[str, CaseFolder] = {}
    for folder in config.case_batches:
        for case in open_prepared(folder).cases():
            cases[case.case.case_id] = case
    return cases


def _evaluate_all(cohort: Path, tasks: list[CaseTask], rule: Any, context: StepContext) -> list[CaseResult]:
    # Threads: unpacking, array work and the nearest-neighbour search release the interpreter's lock.
    from concurrent.futures import ThreadPoolExecutor, as_completed

    from medweave_steps.evaluate.case import evaluate_case

    progress = context.progress(unit="case", total=len(tasks))
    executor = ThreadPoolExecutor(max_workers=max(1, context.num_threads))
    try:
        futures = {executor.submit(evaluate_case, cohort, task, rule): place for place, task in enumerate(tasks)}
        results: dict[int, CaseResult] = {}
        for future in as_completed(futures):
            result = results[futures[future]] = future.result()
            figures = result.figures
            shown = "no lesion in either mask" if figures.dice is None else f"Dice {figures.dice:.3f}"
            progress.step(
                f"{figures.case_id}, {shown}, {figures.lesions_hit} of {figures.lesions} lesions detected, "
                f"{figures.false_positives} false positives",
                dice=figures.dice,
            )
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    return [results[place] for place in sorted(results)]


def _say(evaluation: Evaluation, context: StepContext) -> None:
    if evaluation.synthetic:
        context.notice("synthetic data: these results say nothing about performance on patients.")
    if evaluation.labels_not_evaluated:
        names = ", ".join(evaluation.labels_not_evaluated)
        context.notice(
            f"not evaluated, because the ground truth has no such labels: {names}. Voxels of these labels count as background."
        )
    for count, what in (
        (evaluation.cases_both_empty, "no lesion in either mask and therefore no Dice"),
        (len(evaluation.cases_without_ground_truth), "no ground truth and therefore no metrics"),
    ):
        if count:
            context.notice(f"{count} {'case has' if count == 1 else 'cases have'} {what}.")


DESCRIPTION = """\
Compares the delivered masks (DICOM SEG if present, else NIfTI) with the ground truth on the source grid. Metrics, per case and
pooled: Dice, HD95 (mm), NSD at 2 mm, lesion sensitivity by size (longest in-plane diameter, mm) and false positives per scan.
Pooled metrics have 95 % bootstrap intervals over patients. For comparison, the same metrics are computed for a fixed baseline:
a threshold (CT: in HU, inside the lungs for cases cropped to the lungs; MR: on the first contrast) and a component-size filter.
With several labels, these metrics count all labels as one mask, and each label, or region of the model, has its own in addition.
Voxels with the ignore value of the cohort are in no metric.
With --classifications, predicted classes are compared with the known classes of the cohort index: accuracy, balanced accuracy,
F1, ROC-AUC, average precision (PR-AUC), log loss, calibration error, sensitivity and specificity of each class, and the confusion
matrix. The baseline is logistic regression on color (ECG: amplitude) histograms, or on all columns of a table, fitted on the
training split of --training-set. Rows of a table need no cohort index. With
--covariates, metrics.json has the accuracy by sex, age and MMSE, too; no network sees this table.
Errors: masks on another grid; missing cases; labels or classes of the ground truth that the model does not
predict."""
EXAMPLE = """\
medweave-step evaluate --cohort cohort --cohort-index cohort_index.json --segmentations segmentations \\
      --case-batches prepared/inference_batches/batch-000 --output evaluation"""

VERB = Verb(name="evaluate", description=DESCRIPTION, example=EXAMPLE, config=EvaluateConfig, run=run)
