"""The content of each section of a classification's report, as plain values for the template."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.classification_evaluation import (
    ClassFigures,
    ClassificationEvaluation,
    RecordingEvaluation,
)
from medweave_core.contracts.evaluation import Interval
from medweave_core.contracts.report_fragment import HeadlineFigure
from medweave_core.contracts.volume import MODALITY_NAMES, Modality, are_images, are_signals, is_table, modality_of
from medweave_steps.report import training_facts
from medweave_steps.report.classification.material import ClassMaterial
from medweave_steps.report.sections import BACKENDS, about_intervals, data_facts
from medweave_steps.report.words import figure, interval, plural, triple

SECTIONS = (
    ("results", "Results"),
    ("classes", "Class by class"),
    ("calibration", "Calibration"),
    ("worst", "Worst cases"),
)
RECORDINGS = ("recordings", "Whole recordings")
"""Section after the classes, where the cases are samples of an ECG."""
COVARIATES = ("covariates", "Accuracy by covariate")
"""Section after the classes, where the evaluation has a table of covariates."""
EXPLANATIONS = ("explanations", "Explanation maps")
"""Last section, where `explain` was run."""
COVARIATE_NAMES = {"sex": "Sex", "age": "Age, years", "mmse": "MMSE, points"}
_HEADLINE = (
    ("accuracy", "Accuracy"),
    ("balanced_accuracy", "Balanced accuracy"),
    ("macro_f1", "F1, mean over classes"),
    ("macro_roc_auc", "ROC-AUC, mean over classes"),
    ("expected_calibration_error", "Expected calibration error"),
)
_MORE = (
    ("weighted_f1", "F1, mean over classes weighted by their cases"),
    ("micro_f1", "F1, over all decisions"),
    ("macro_average_precision", "PR-AUC, mean over classes"),
    ("log_loss", "Log loss, nats"),
)
_IMAGES_OF: dict[Modality, str] = {
    "XC": "photographs", "CR": "CR radiographs", "DX": "DX radiographs", "MG": "mammograms",
}  # fmt: skip
_NOT_A_SHARE = ("log_loss",)


def title_of(material: ClassMaterial) -> str:
    """Return the default title: what is classified, and into how many classes."""
    cohort, count = material.cohort, len(material.evaluation.classes)
    kind = "findings" if material.evaluation.is_multi_label else "classes"
    modality = modality_of(cohort.channels)
    return f"Classification of {_IMAGES_OF.get(modality, MODALITY_NAMES[modality])} into {count} {kind}"


def case_word(material: ClassMaterial) -> str:
    """Return `row`, `image`, `sample` (of an ECG) or `scan`: what a case is."""
    if is_table(material.cohort.channels):
        return "row"
    if are_signals(material.cohort.channels):
        return "sample"
    return "image" if are_images(material.cohort.channels) else "scan"


def patient_word(material: ClassMaterial) -> str:
    """Return `patient`, `recording` of an ECG, or `group` for the rows of a table that belong together."""
    if is_table(material.cohort.channels):
        return "group"
    return "recording" if are_signals(material.cohort.channels) else "patient"


def headline(material: ClassMaterial) -> tuple[HeadlineFigure, ...]:
    """Return the figures that the report opens with."""
    return tuple(_figure(material, *row) for row in _HEADLINE)


def all_figures(material: ClassMaterial) -> tuple[HeadlineFigure, ...]:
    """Return every figure over all classes, for the table."""
    return tuple(_figure(material, *row) for row in (*_HEADLINE, *_MORE))


def _figure(material: ClassMaterial, key: str, label: str) -> HeadlineFigure:
    evaluation = material.evaluation
    note = f"{plural(evaluation.cases, case_word(material))} of {plural(evaluation.patients, patient_word(material))}"
    if key == "accuracy":
        right = sum(case.is_correct for case in evaluation.per_case)
        note = f"{right} of {plural(evaluation.cases, case_word(material))}"
    return HeadlineFigure(
        key=key,
        label=label,
        value=getattr(evaluation, key),
        interval=getattr(evaluation, f"{key}_ci"),
        baseline=getattr(evaluation.baseline, key, None),
        note=note,
        is_share=key not in _NOT_A_SHARE,
    )


def remarks(material: ClassMaterial) -> list[str]:
    """Return remarks that a reader needs to interpret the figures."""
    evaluation = material.evaluation
    sentences = [about_intervals(evaluation.bootstrap)]
    if evaluation.is_multi_label:
        sentences.append(
            f"A {case_word(material)} has any number of the classes. It counts as correct for the accuracy only if all its classes "
            "are predicted and no other; balanced accuracy is the mean over the classes of the mean of sensitivity and specificity."
        )
    if evaluation.baseline is not None and evaluation.baseline.rule == "logistic regression":
        sentences.append(
            f"Baseline: logistic regression on the same {evaluation.baseline.bins} features, fitted on "
            f"{evaluation.baseline.training_cases} training rows."
        )
    elif evaluation.baseline is not None:
        sentences.append(
            f"Baseline: logistic regression on the {evaluation.baseline.rule} ({evaluation.baseline.bins} bins), fitted on "
            f"{evaluation.baseline.training_cases} training {case_word(material)}s; it sees neither shape nor place."
        )
    if evaluation.cases_without_ground_truth:
        count = plural(len(evaluation.cases_without_ground_truth), case_word(material))
        sentences.append(f"Classified, but excluded from all metrics because the classes are not known: {count}.")
    return sentences


def class_rows(
    by_class: Sequence[ClassFigures], classes: Sequence[ImageClass]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the name of each class; its cases, those predicted, and its figures, each with its interval."""
    return [(_class_name(one, classes), _class_cells(one)) for one in by_class]


def _class_name(one: ClassFigures, classes: Sequence[ImageClass]) -> str:
    code = next((declared.code for declared in classes if declared.name == one.name), None)
    return one.name if code is None or code.meaning == one.name else f"{one.name} ({code.meaning})"


def _class_cells(one: ClassFigures) -> list[tuple[str, str]]:
    figures: list[tuple[float | None, Interval | None]] = [
        (one.f1, one.f1_ci),
        (one.sensitivity, one.sensitivity_ci),
        (one.specificity, one.specificity_ci),
        (one.roc_auc, one.roc_auc_ci),
        (one.average_precision, one.average_precision_ci),
    ]
    return [
        (str(one.cases), ""),
        (str(one.predicted_cases), ""),
        *((figure(value), interval(bounds)) for value, bounds in figures),
    ]


def own_sections(material: ClassMaterial) -> tuple[tuple[str, str], ...]:
    """Return the id and heading of each section of a classification, in the order of the template."""
    results, classes, *others = SECTIONS
    if is_table(material.cohort.channels):
        others = [section for section in others if section[0] != "worst"]
    recordings = [RECORDINGS] if material.evaluation.by_recording else []
    covariates = [COVARIATES] if material.evaluation.by_covariate else []
    return (results, classes, *recordings, *covariates, *others, *([EXPLANATIONS] if material.explained else []))


def covariate_tables(evaluation: ClassificationEvaluation) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return for each covariate its name, and for each group its patients, its cases, and the accuracy with its interval."""
    tables: dict[str, list[tuple[str, list[str]]]] = {}
    for one in evaluation.by_covariate:
        cells = [str(one.patients), str(one.cases), figure(one.accuracy), interval(one.accuracy_ci)]
        tables.setdefault(COVARIATE_NAMES[one.covariate], []).append((one.group, cells))
    return list(tables.items())


def confusion_rows(
    matrix: Sequence[Sequence[int]], classes: Sequence[ImageClass]
) -> list[tuple[str, list[tuple[int, float]]]]:
    """Return for each known class the cases by predicted class, with their share of the class's cases; no row for multi-label."""
    if not matrix:
        return []
    return [
        (one.name, [(count, count / max(sum(counts), 1)) for count in counts])
        for one, counts in zip(classes, matrix, strict=True)
    ]


def recording_figures(evaluation: RecordingEvaluation) -> list[tuple[str, str, str, str]]:
    """Return label, value, interval and population of each figure over recordings."""
    right = sum(one.class_name == one.predicted for one in evaluation.per_recording)
    count = plural(evaluation.recordings, "recording")
    mean = f"F1, mean over {', '.join(evaluation.scored_classes)}"
    return [
        (mean, figure(evaluation.macro_f1), interval(evaluation.macro_f1_ci), count),
        ("Accuracy", figure(evaluation.accuracy), interval(evaluation.accuracy_ci), f"{right} of {count}"),
    ]


def decision_rows(evaluation: ClassificationEvaluation) -> list[tuple[str, list[int]]]:
    """Return for each class of a multi-label classification its true and false positives, and false and true negatives."""
    if not evaluation.is_multi_label:
        return []
    return [
        (one.name, [one.true_positives, one.false_positives, one.false_negatives, one.true_negatives])
        for one in evaluation.by_class
    ]


def model_facts(material: ClassMaterial) -> list[tuple[str, str]]:
    """Return the rows about the model, its input and its training data."""
    classified = material.classified
    names = [
        one.name if one.code is None else f"{one.name} ({one.code.meaning})" for one in material.evaluation.classes
    ]
    thresholds = [f"{name} {value:g}" for name, value in zip(names, classified.thresholds, strict=False)]
    facts = [
        ("Model", classified.model_name),
        ("Model card, SHA-256", classified.model_sha256),
        ("Precision and library", f"{classified.precision}, {BACKENDS[classified.backend]}"),
        ("Input", _input_of(material)),
        ("Classes", "; ".join(names)),
        ("Temperature", f"{classified.temperature:g}"),
        ("Thresholds selected on the validation split", "; ".join(thresholds)),
        *data_facts(material, synthetic=material.evaluation.synthetic),
        ("Intended use", classified.intended_use),
    ]
    return [(name, value) for name, value in facts if value]


def _input_of(material: ClassMaterial) -> str:
    cohort = material.cohort
    if is_table(cohort.channels):
        return f"{plural(len(cohort.channels), 'feature')} of a table"
    what = f"{MODALITY_NAMES[modality_of(cohort.channels)]} ({', '.join(cohort.channels)})"
    folder = next(iter(material.cases.values()), None)
    if are_signals(cohort.channels):
        return f"{what}: five heartbeats of 260 values each at 300 Hz, mV"
    if folder is None or not are_images(cohort.channels):
        return f"{what} on a grid of {triple(cohort.spacing_mm)} mm"
    columns, rows, _ = folder.info().grid.shape
    return f"{what} of {columns} × {rows} pixels"


def facts_of_training(material: ClassMaterial) -> list[tuple[str, str]]:
    """Return the facts of the training, with its figures on the validation split."""
    results = material.results_of("train")
    metrics, trained = results.get("metrics", {}), results.get("training", {})
    of_classes = trained.get("num_training_cases_by_class", {})
    facts = [
        ("Network", _network_of(trained)),
        *training_facts.run_facts(material, unit=f"{case_word(material)}s"),
        ("Training cases of each class", ", ".join(f"{name} {count}" for name, count in of_classes.items())),
        *(
            (f"Validation {label}", figure(metrics[f"validation_{key}"], 3))
            for key, label in (("macro_f1", "macro-F1"), ("accuracy", "accuracy"))
            if metrics.get(f"validation_{key}") is not None
        ),
    ]
    return [(name, text) for name, text in facts if text]


def _network_of(trained: dict[str, object]) -> str:
    if "network" not in trained:
        return ""
    width = trained.get("width")
    return str(trained["network"]) if width in (None, 1, 1.0) else f"{trained['network']}, width {width:g}"
