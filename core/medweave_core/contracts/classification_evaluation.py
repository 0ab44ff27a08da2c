"""`metrics.json` of a classification: how well predicted classes agree with the known ones, pooled, per class and per case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.codec import omitted
from medweave_core.contracts.evaluation import Interval
from medweave_core.contracts.volume import DataClass

BaselineRule = Literal["color histogram", "amplitude histogram", "logistic regression"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCaseFigures:
    """One case with known classes.

    Attributes:
        patient_key: equal for cases of one patient.
        classes, predicted: names of the known and of the predicted classes.
        is_correct: both are the same.
        true_probability: lowest calibrated probability of a known class; with several possible classes (multi-label), the lowest
            probability that the model gave the truth of a class, present or absent. Low values are the worst cases.
        probabilities: calibrated probability of each class, by name.
        baseline_predicted: classes predicted by the baseline; null without one.
    """

    case_id: str
    patient_key: str
    classes: tuple[str, ...]
    predicted: tuple[str, ...]
    is_correct: bool
    true_probability: float
    probabilities: Mapping[str, float]
    baseline_predicted: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """One class against all others. A figure that is not defined is null; `_ci` is the bootstrap interval over patients.

    Attributes:
        name: of the class.
        cases: cases that have the class.
        predicted_cases: cases for which it was predicted.
        true_positives, false_positives, false_negatives, true_negatives: cases with and without the class by prediction.
        sensitivity: true positives over the cases that have it (recall).
        specificity: true negatives over the cases that do not have it.
        f1: harmonic mean of precision and sensitivity.
        roc_auc: area under the ROC curve of its probability.
        average_precision: area under the precision-recall curve (PR-AUC), without interpolation.
    """

    name: str
    cases: int
    predicted_cases: int
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int
    sensitivity: float | None
    sensitivity_ci: Interval | None
    specificity: float | None
    specificity_ci: Interval | None
    f1: float | None
    f1_ci: Interval | None
    roc_auc: float | None
    roc_auc_ci: Interval | None
    average_precision: float | None
    average_precision_ci: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CovariateFigures:
    """The cases of one group of a covariate. A figure that is not defined is null; `_ci` is the bootstrap interval over patients.

    Attributes:
        covariate: sex, age or mmse.
        group: F, M or O; a band such as `70 to below 80` (years, or points of the Mini-Mental State Examination); or `unknown`.
        cases, patients: in the group.
        accuracy: share of these cases whose predicted classes are exactly the known ones.
    """

    covariate: str
    group: str
    cases: int
    patients: int
    accuracy: float | None
    accuracy_ci: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingFigures:
    """One recording of an ECG with a known class.

    Attributes:
        recording: id of the recording, the start of the ids of its samples.
        samples: number of its samples.
        class_name, predicted: names of the known and of the predicted class.
        probabilities: mean of the calibrated probabilities of its samples, by class.
    """

    recording: str
    samples: int
    class_name: str
    predicted: str
    probabilities: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingEvaluation:
    """Figures of the recordings of an ECG: a recording has the class with the largest mean of the calibrated probabilities of its
    samples, of equal ones the first. A figure that is not defined is null; `_ci` is the bootstrap interval over patients.

    Attributes:
        recordings: recordings with a known class.
        scored_classes: classes whose mean F1 is `macro_f1`: those that the cohort does not leave out (`is_scored`).
        macro_f1: mean F1 of the scored classes; for N, A and O the score of the PhysioNet/CinC Challenge 2017.
        accuracy: share of recordings with the right class, of all classes.
        by_class: figures of each class.
        confusion_matrix: recordings by known class (rows) and predicted class (columns).
        per_recording: every recording with a known class.
    """

    recordings: int
    scored_classes: tuple[str, ...]
    macro_f1: float | None
    macro_f1_ci: Interval | None
    accuracy: float | None
    accuracy_ci: Interval | None
    by_class: tuple[ClassFigures, ...]
    confusion_matrix: tuple[tuple[int, ...], ...]
    per_recording: tuple[RecordingFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColorBaseline:
    """Logistic regression on a histogram of an image or an ECG, which sees no shape, or on the features of a row of a table.

    Attributes:
        bins: number of histogram bins, or of features.
        training_cases: cases that it was fitted on: the training split.
        accuracy, balanced_accuracy, macro_f1: as in `ClassificationEvaluation`, on the same cases.
        rule: what the baseline sees: the color histogram of images, the amplitude histogram of ECG, or all features of a table
            (logistic regression).
    """

    bins: int
    training_cases: int
    accuracy: float | None
    accuracy_ci: Interval | None
    balanced_accuracy: float | None
    balanced_accuracy_ci: Interval | None
    macro_f1: float | None
    macro_f1_ci: Interval | None
    rule: BaselineRule = "color histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationEvaluation:
    """The whole of `metrics.json` for a classification. A figure that is not defined is null; `_ci` is the bootstrap interval over
    patients.

    Attributes:
        synthetic: True if the data come from a generator: the figures then say nothing about patients.
        patients: patients with known classes.
        cases: cases with known classes.
        is_multi_label: True if a case can have any number of the classes; otherwise it has exactly one.
        classes: classes of the model with their codes, in the order of `by_class` and `confusion_matrix`.
        accuracy: share of cases whose predicted classes are exactly the known ones.
        balanced_accuracy: mean sensitivity of the classes; multi-label, mean over the classes of the mean of sensitivity and
            specificity.
        macro_f1: mean F1 of the classes.
        weighted_f1: mean F1 of the classes, weighted by their cases.
        micro_f1: F1 over all decisions, summed over the classes; the accuracy, where classes exclude each other.
        macro_roc_auc, macro_average_precision: means over the classes.
        expected_calibration_error: mean difference between probability and frequency, 15 bins of equal width.
        log_loss: mean negative log-likelihood of the truth, nats.
        by_class: figures of each class.
        confusion_matrix: cases by known class (rows) and predicted class (columns); empty for multi-label, where `by_class` has
            the four counts of each class.
        bootstrap: seed, draws and level of the intervals.
        baseline: null without a training set to fit it on.
        cases_without_ground_truth: classified, but their classes are not known; in no figure.
        per_case: every case with known classes.
        by_covariate: accuracy by group of sex, age and MMSE; empty without a table of covariates.
        by_recording: the same of whole recordings, where cases are samples of an ECG; null for other cases.
    """

    synthetic: bool
    patients: int
    cases: int
    is_multi_label: bool
    classes: tuple[ImageClass, ...]
    accuracy: float | None
    accuracy_ci: Interval | None
    balanced_accuracy: float | None
    balanced_accuracy_ci: Interval | None
    macro_f1: float | None
    macro_f1_ci: Interval | None
    weighted_f1: float | None
    weighted_f1_ci: Interval | None
    macro_roc_auc: float | None
    macro_roc_auc_ci: Interval | None
    macro_average_precision: float | None
    macro_average_precision_ci: Interval | None
    expected_calibration_error: float | None
    expected_calibration_error_ci: Interval | None
    log_loss: float | None
    log_loss_ci: Interval | None
    by_class: tuple[ClassFigures, ...]
    confusion_matrix: tuple[tuple[int, ...], ...]
    bootstrap: Mapping[str, float]
    baseline: ColorBaseline | None
    cases_without_ground_truth: tuple[str, ...]
    per_case: tuple[ClassCaseFigures, ...]
    by_covariate: tuple[CovariateFigures, ...] = ()
    micro_f1: float | None = None
    micro_f1_ci: Interval | None = None
    by_recording: RecordingEvaluation | None = omitted(None)
    task_name: Literal["classification"] = "classification"
    evaluation_version: Literal[1] = 1
    data_class: DataClass = "aggregate"
