"""How well a classification agrees with the truth, for `gate`: accuracy, macro-F1 and macro-AUC, with intervals over patients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.gate import (
    GateClassCase,
    GateClassComparison,
    GateClassFigures,
    GateClassTolerances,
    GateDifference,
)
from medweave_core.contracts.labels import slugs
from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UserInputError
from medweave_steps.inference.engine import Engine, check_finite
from medweave_steps.inference.intensity import scaled
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.metrics.bootstrap import confidence_interval
from medweave_steps.metrics.classification import (
    METRICS,
    Metric,
    Predictions,
    accuracy,
    balanced_accuracy,
    expected_calibration_error,
    f1_by_class,
    macro_f1,
)
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.tasks.judge import Judge, Judged, judged_interval, number_or_none

FloatArray = npt.NDArray[np.float64]


def network_input(
    volume_CIJK: npt.NDArray[np.floating], card: ModelCard, *, case_id: str = ""
) -> npt.NDArray[np.float32]:
    """Return a prepared image as the network takes it, float32 [1, C, I, J, K].

    Raises:
        UserInputError: it has another shape than the model card.
    """
    expected = (card.input.channels, *card.input.patch_shape)
    if tuple(volume_CIJK.shape) != expected:
        raise UserInputError(
            f"the image{f' of {case_id}' if case_id else ''} does not fit the model '{card.name}'.",
            seen=f"an array of shape {tuple(volume_CIJK.shape)}",
            expected=f"channels and voxels {expected} (model_card.json)",
            do="run preprocess with the size of this model card",
        )
    return np.array(scaled(volume_CIJK, card.input.window_hu, card.input.scaled_range))[None]


def predict_classes(
    engine: Engine, volume_CIJK: npt.NDArray[np.floating], card: ModelCard, *, case_id: str = ""
) -> FloatArray:
    """Return the calibrated probability of each class for a whole image, float64 [C] in [0, 1].

    Args:
        engine: compiled for a batch of one.
        case_id: of the image, for the error.
    Raises:
        UserInputError: the image has another shape than the model card.
        InternalError: the network gave values that are not finite.
    """
    logits_BC = engine.infer(network_input(volume_CIJK, card, case_id=case_id))
    check_finite(logits_BC, card, what="logits")
    probability: FloatArray = ClassTargets.of(card).probabilities(
        logits_BC, temperature=card.postprocessing.temperature
    )[0]
    return probability


def judge_case(folder: CaseFolder, probability_C: FloatArray, card: ModelCard) -> GateClassCase:
    """Return true and predicted classes of a case with known classes."""
    targets = ClassTargets.of(card)
    decided = targets.decided(probability_C[None], card.postprocessing)[0]
    return GateClassCase(
        case_id=folder.case.case_id,
        patient_key=folder.case.patient_key,
        classes=targets.named(targets.truth_C(folder.case)),
        predicted=targets.named(decided),
        probabilities={name: float(value) for name, value in zip(targets.names, probability_C, strict=True)},
        is_multi_label=targets.is_multi_label,
    )


def predictions_of(cases: Sequence[GateClassCase]) -> Predictions:
    """Return judged cases as the metrics take them."""
    names = list(cases[0].probabilities)
    return Predictions(
        truth_NC=np.array([[name in case.classes for name in names] for case in cases]),
        decided_NC=np.array([[name in case.predicted for name in names] for case in cases]),
        probability_NC=np.array([[case.probabilities[name] for name in names] for case in cases]),
        is_multi_label=cases[0].is_multi_label,
    )


class ClassificationJudge(Judge):
    """A candidate's accuracy, macro-F1 and macro-AUC must not fall: the intervals of the paired differences decide."""

    options = ("accuracy_tolerance", "macro_f1_tolerance", "macro_auc_tolerance")

    def tolerances(
        self, limits: Mapping[str, float], *, min_speedup: float, max_slowdown: float
    ) -> GateClassTolerances:
        """Return the limits of a candidate."""
        return GateClassTolerances(
            accuracy=limits["accuracy_tolerance"],
            macro_f1=limits["macro_f1_tolerance"],
            macro_auc=limits["macro_auc_tolerance"],
            min_speedup=min_speedup,
            max_slowdown=max_slowdown,
        )

    def figures(self, cases: Sequence[GateClassCase]) -> GateClassFigures:
        """Return accuracy, balanced accuracy, macro-F1 and calibration error of one model, and the F1 of each class."""
        seen = predictions_of(cases)
        names = list(cases[0].probabilities)
        return GateClassFigures(
            accuracy=accuracy(seen),
            balanced_accuracy=balanced_accuracy(seen),
            macro_f1=macro_f1(seen),
            macro_auc=METRICS["macro_roc_auc"](seen),
            expected_calibration_error=expected_calibration_error(seen),
            f1_by_class=dict(zip(names, f1_by_class(seen), strict=True)),
            cases=tuple(cases),
        )

    def compare(
        self, base: Sequence[GateClassCase], candidate: Sequence[GateClassCase], *, seed: int
    ) -> GateClassComparison:
        """Return the paired differences, candidate minus float32, with confidence intervals over patients."""
        assert [case.case_id for case in base] == [case.case_id for case in candidate]
        return GateClassComparison(
            figures=self.figures(candidate),
            accuracy=_difference(base, candidate, accuracy, seed=seed),
            macro_f1=_difference(base, candidate, macro_f1, seed=seed),
            macro_auc=_difference(base, candidate, METRICS["macro_roc_auc"], seed=seed),
        )

    def judged(self, comparison: GateClassComparison, tolerances: GateClassTolerances) -> list[Judged]:
        """Return whether accuracy, macro-F1 and macro-AUC stay within the tolerances, with the reasons."""
        judged = [
            judged_interval("accuracy", comparison.accuracy, tolerances.accuracy),
            judged_interval("macro-F1", comparison.macro_f1, tolerances.macro_f1),
        ]
        if comparison.macro_auc is not None and tolerances.macro_auc is not None:
            judged.append(judged_interval("macro-AUC", comparison.macro_auc, tolerances.macro_auc))
        return judged

    def metrics(self, figures: GateClassFigures) -> dict[str, float | None]:
        """Return the figures under the names that a trained model's card has for them."""
        own = {
            "accuracy": figures.accuracy,
            "balanced_accuracy": figures.balanced_accuracy,
            "macro_f1": figures.macro_f1,
            "expected_calibration_error": figures.expected_calibration_error,
        }
        keys = slugs(tuple(figures.f1_by_class))
        own |= {f"f1_{slug}": value for slug, value in zip(keys, figures.f1_by_class.values(), strict=True)}
        return {f"validation_{name}": value for name, value in own.items()}


def _difference(
    base: Sequence[GateClassCase], candidate: Sequence[GateClassCase], metric: Metric, *, seed: int
) -> GateDifference:
    before, after = predictions_of(base), predictions_of(candidate)
    width = before.rows.shape[1]

    def statistic(rows: Any) -> float:
        values = metric(before.with_rows(rows[:, :width])), metric(after.with_rows(rows[:, width:]))
        return math.nan if values[0] is None or values[1] is None else values[1] - values[0]

    rows = np.concatenate([before.rows, after.rows], axis=1)
    low, high = confidence_interval(rows, statistic, seed=seed, patients=[case.patient_key for case in base])
    return GateDifference(value=number_or_none(statistic(rows)), lower=number_or_none(low), upper=number_or_none(high))
