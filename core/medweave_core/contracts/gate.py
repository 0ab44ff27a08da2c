"""`gate_decision.json`: the measurements of each candidate and their machine, the decision, and its reasons.

A model with several outputs (labels, or regions) is judged by the figures of each of them, in the mappings `by_label`. The figures
above these are then the mean Dice over the outputs, the lesions of all outputs pooled, and the sum of their false positives; they
do not affect the decision. A model with one output is judged by the figures above, and its mappings are empty.

A classification has the classes named GateClass… instead: it is judged by accuracy, macro-F1 and macro-AUC.

The file has the seconds of every round and the findings in every case: `medweave_steps.gate.judge.recompute` repeats the decision
from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from medweave_core.contracts.model import Precision, Runtime
from medweave_core.contracts.volume import DataClass


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTolerances:
    """The limits for the losses of a candidate, equal for every label, and the required gain.

    Attributes:
        dice: the lower bound of the paired difference of Dice (95 % interval over patients) must be above minus this value.
        sensitivity: lesion sensitivity may fall by this much.
        false_positives_per_scan: false positives per scan may rise by this much.
        min_speedup: from this ratio of seconds (float32 over candidate) on, a candidate counts as faster.
        max_slowdown: a candidate that is only smaller may take this many times the seconds of float32.
    """

    dice: float
    sensitivity: float
    false_positives_per_scan: float
    min_speedup: float
    max_slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GateClassTolerances:
    """The limits for the losses of a candidate of a classification, and the required gain.

    Attributes:
        accuracy, macro_f1, macro_auc: the lower bound of the paired difference (95 % interval over patients) must be above minus
            this value; macro_auc is None where the AUC was not judged (decisions of earlier versions).
        min_speedup, max_slowdown: as in the tolerances of a segmentation.
    """

    accuracy: float
    macro_f1: float
    min_speedup: float
    max_slowdown: float
    macro_auc: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateClassCase:
    """One case classified by one model.

    Attributes:
        classes: the true classes.
        predicted: the predicted classes.
        probabilities: calibrated probability of each class, by name, in the order of the model's outputs.
        is_multi_label: a case has any number of classes; otherwise exactly one.
    """

    case_id: str
    patient_key: str
    classes: tuple[str, ...]
    predicted: tuple[str, ...]
    probabilities: Mapping[str, float]
    is_multi_label: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GateClassFigures:
    """One classification model on one split; None for figures that are not defined.

    Attributes:
        accuracy: share of cases whose predicted classes are exactly the true ones.
        balanced_accuracy: mean sensitivity of the classes; multi-label, the mean of sensitivity and specificity.
        macro_f1: mean F1 of the classes.
        macro_auc: mean area under the ROC curve of the classes, each against the cases without it.
        expected_calibration_error: difference of probabilities and frequencies, 15 bins of equal width.
        f1_by_class: by name.
    """

    accuracy: float | None
    balanced_accuracy: float | None
    macro_f1: float | None
    expected_calibration_error: float | None
    f1_by_class: Mapping[str, float | None]
    cases: tuple[GateClassCase, ...]
    macro_auc: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLabelCase:
    """One label of one case seen by one model, on the prepared grid.

    Attributes:
        dice: Dice coefficient; 1 if both masks are empty, 0 if exactly one is.
        lesions, lesions_hit: reference lesions, and those that a predicted component overlaps.
        false_positives: predicted components that overlap no lesion.
    """

    dice: float
    lesions: int
    lesions_hit: int
    false_positives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCase:
    """One case seen by one model, on the prepared grid.

    Attributes:
        dice: Dice coefficient; 1 if both masks are empty, 0 if exactly one is. Of several labels the mean.
        lesions, lesions_hit: reference lesions, and those that a predicted component overlaps, of all labels.
        false_positives: predicted components that overlap no lesion, of all labels.
        by_label: the same for each label or region of a model with several, by name.
    """

    case_id: str
    patient_key: str
    dice: float
    lesions: int
    lesions_hit: int
    false_positives: int
    by_label: Mapping[str, GateLabelCase] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLabelFigures:
    """One label of one model on one split.

    Attributes:
        dice_mean: mean over cases.
        lesion_sensitivity: lesions hit over lesions of all cases; None if there is no lesion.
        false_positives_per_scan: mean over cases.
    """

    dice_mean: float
    lesion_sensitivity: float | None
    false_positives_per_scan: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFigures:
    """One model on one split.

    Attributes:
        dice_mean: mean over cases; of several labels, the mean over cases and labels.
        lesion_sensitivity: lesions hit over lesions of all cases and labels; None if there is no lesion.
        false_positives_per_scan: mean over cases, of several labels summed.
        by_label: the same for each label or region of a model with several, by name.
    """

    dice_mean: float
    lesion_sensitivity: float | None
    false_positives_per_scan: float
    cases: tuple[GateCase, ...]
    by_label: Mapping[str, GateLabelFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDifference:
    """Candidate minus float32, paired by case.

    Attributes:
        lower, upper: 95 % interval by bootstrap over patients; None for fewer than two patients.
    """

    value: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLabelComparison:
    """One label of a candidate compared with float32 on one split."""

    dice: GateDifference
    lesion_sensitivity: GateDifference
    false_positives_per_scan: GateDifference


@dataclass(frozen=True, slots=True, kw_only=True)
class GateComparison:
    """A candidate compared with float32 on one split.

    Attributes:
        by_label: the differences of each label or region of a model with several, by name; the tolerances hold for each.
    """

    figures: GateFigures
    dice: GateDifference
    lesion_sensitivity: GateDifference
    false_positives_per_scan: GateDifference
    by_label: Mapping[str, GateLabelComparison] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateClassComparison:
    """A candidate of a classification compared with float32 on one split."""

    figures: GateClassFigures
    accuracy: GateDifference
    macro_f1: GateDifference
    macro_auc: GateDifference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSpeed:
    """Seconds per volume of one model, and how they compare with float32 in alternating pairs.

    Attributes:
        seconds_per_volume: median over all runs, s (network and sliding window, without reading).
        speedup: median over pairs of float32's seconds over this model's; 1 for float32 itself.
        speedup_quartiles: first and third quartile of these ratios.
        pairs: how many.
        model_bytes: size of the files that the runtime opens, bytes.
        size_ratio: this model's bytes over float32's.
        interval: 95 % interval of the median ratio; None in decisions of earlier versions.
        seconds: of each round in order, s; those of a candidate belong to the first rounds of float32.
    """

    seconds_per_volume: float
    speedup: float
    speedup_quartiles: tuple[float, float]
    pairs: int
    model_bytes: int
    size_ratio: float
    interval: tuple[float, float] | None = None
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCandidate:
    """One candidate: a model in one runtime.

    Attributes:
        name: `float32`, `pruned`, `int8` or `pruned-int8`; a second model of a kind has the suffix `-2`, and so on.
        card_sha256: digest of the candidate's card.
        runtime, device: where it was measured.
        failure: why it could not be measured; empty for a candidate that ran.
        reasons: why it was accepted or refused, in words; the refusals first.
        speed, validation: None if the candidate failed to run.
        test: reported only, and not part of the decision; None without test cases.
    """

    precision: Precision
    card_sha256: str
    is_accepted: bool
    reasons: tuple[str, ...]
    speed: GateSpeed | None
    validation: GateClassComparison | GateComparison | None
    test: GateClassComparison | GateComparison | None = None
    name: str = "int8"
    runtime: Runtime = "openvino"
    device: Literal["cpu", "cuda"] = "cpu"
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """`gate_decision.json`: the measurements of each candidate, and the accepted model.

    Attributes:
        model: name of the model.
        task_name: task of the model.
        exported_sha256: digest of the exported model's card, the reference of every candidate.
        precision: numeric precision for `segment` or `classify`.
        chosen: name of the accepted model, as in the candidates.
        runtime: runtime for `segment` or `classify`.
        fixed_choice: candidate and runtime that were fixed, such as `int8:openvino`: speed was not judged.
        reason: the decision in one line.
        host_cpu, num_threads: processor and number of threads of the measurement.
        float32_speed, float32_validation, float32_test: the exported model, which candidates are compared with.
        float32_runtime, float32_device: where it was measured.
        bootstrap_seed: seed of the intervals.
    """

    model: str
    exported_sha256: str
    precision: Precision
    reason: str
    synthetic: bool
    host_cpu: str
    num_threads: int
    tolerances: GateClassTolerances | GateTolerances
    float32_speed: GateSpeed
    float32_validation: GateClassFigures | GateFigures
    candidates: tuple[GateCandidate, ...]
    float32_test: GateClassFigures | GateFigures | None = None
    versions: Mapping[str, str]
    bootstrap_seed: int
    chosen: str = ""
    runtime: Runtime = "openvino"
    fixed_choice: str | None = None
    float32_runtime: Runtime = "openvino"
    float32_device: Literal["cpu", "cuda"] = "cpu"
    task_name: str = "segmentation"
    decision_version: Literal[1] = 1
    data_class: DataClass = "aggregate"
