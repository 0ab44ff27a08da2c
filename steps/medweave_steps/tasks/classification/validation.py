"""Validation of a classification: logits of whole images, macro-F1 as the score, calibration for the best weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import slugs
from medweave_core.contracts.model import Postprocessing
from medweave_steps.inference.intensity import scaled
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.findings import first_of
from medweave_steps.metrics.classification import (
    METRICS,
    Predictions,
    areas_by_class,
    average_precision,
    expected_calibration_error,
    f1_by_class,
    roc_auc,
)
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.tasks.classification.loss import check_logits
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.tasks.classification.temperature import BOUNDS, calibrated, predictions
from medweave_steps.training.loop.validator import Figures, Validator

UNCALIBRATED = "expected_calibration_error_uncalibrated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTally:
    """The network's output for one case, with its truth.

    Attributes:
        logits: of each class, without temperature.
        truth: which classes the case has.
    """

    logits: tuple[float, ...]
    truth: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationValidator(Validator):
    """Whole images of the validation cases.

    Attributes:
        cases: the validation cases, all with known classes and of one shape.
        targets: the classes.
        compares_loss: weights are compared by the log loss instead of macro-F1.
    """

    cases: Sequence[CaseFolder]
    targets: ClassTargets
    window_hu: tuple[float, float] | None
    scaled_range: tuple[float, float]
    device: Any
    compares_loss: bool = False

    @property
    def plain(self) -> Postprocessing:
        """Return a temperature of 1 and thresholds of one half."""
        return Postprocessing()

    @property
    def choices(self) -> list[Postprocessing]:
        """Return the plain postprocessing: temperature and thresholds follow from the logits, without another pass."""
        return [self.plain]

    def tallies(
        self,
        predictor: Callable[[Any], Any],
        choices: Sequence[Postprocessing],
        *,
        num_cases: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> list[list[ClassTally]]:
        """Return per case, in order, the tally of each choice."""
        return [
            [self._tally_of(folder, predictor)] * len(choices) for folder in self.cases[:num_cases][rank::world_size]
        ]

    def _tally_of(self, folder: CaseFolder, predictor: Callable[[Any], Any]) -> ClassTally:
        torch = require("torch", extra="train")
        image = np.array(scaled(folder.volume_CIJK(), self.window_hu, self.scaled_range))
        with torch.inference_mode():
            logits_BC = predictor(torch.from_numpy(image)[None].to(self.device))
        check_logits(tuple(logits_BC.shape), len(self.targets.classes))
        truth = self.targets.truth_C(folder.case)
        return ClassTally(logits=tuple(logits_BC[0].tolist()), truth=tuple(truth.tolist()))

    def figures(self, tallies: Sequence[ClassTally]) -> Figures:
        """Return the figures over all classes, without calibration."""
        # Two losses that differ by less than the rounding of a figure must not compare as equal.
        return _figures(self._predictions(tallies, self.plain), exact=("log_loss",) if self.compares_loss else ())

    def score(self, figures: Mapping[str, float | None]) -> float:
        """Return macro-F1, or the probability whose negative logarithm is the log loss; 0 where undefined."""
        if not self.compares_loss:
            return figures["macro_f1"] or 0.0
        loss = figures["log_loss"]
        return math.exp(-loss) if loss is not None and math.isfinite(loss) else 0.0

    def progress(self, figures: Mapping[str, float | None]) -> tuple[str, dict[str, float]]:
        """Return macro-F1 and accuracy."""
        macro_f1, accuracy = figures["macro_f1"] or 0.0, figures["accuracy"] or 0.0
        text = f"validation macro-F1 {macro_f1:.2f}, accuracy {accuracy:.2f}"
        return text, {"macro_f1": macro_f1, "accuracy": accuracy}

    def choose(self, context: StepContext, per_case: Sequence[Sequence[ClassTally]]) -> tuple[Postprocessing, Figures]:
        """Fit the temperature, choose the thresholds of multi-label classes, and add the cases' predictions to the report."""
        tallies = [tally for (tally,) in per_case]
        logits, truth = self._arrays(tallies)
        chosen = calibrated(logits, truth, self.targets)
        plain, seen = self._predictions(tallies, self.plain), self._predictions(tallies, chosen)
        figures = _figures(seen) | {UNCALIBRATED: _rounded(expected_calibration_error(plain))}
        for slug, one in self._figures_by_class(seen).items():
            figures |= {f"{name}_{slug}": value for name, value in one.items()}
        self._report(context, chosen, figures, truth)
        self._add_cases(context, seen)
        return chosen, figures

    def _add_cases(self, context: StepContext, seen: Predictions) -> None:
        for folder, decided, own in zip(self.cases, seen.decided_NC, seen.probability_NC, strict=True):
            context.add_case(
                folder.case.case_id,
                split="validation",
                classes=list(folder.case.classes or ()),
                predicted=list(self.targets.named(decided)),
                probabilities=dict(zip(self.targets.names, np.round(own, 4).tolist(), strict=True)),
            )

    def _predictions(self, tallies: Sequence[ClassTally], postprocessing: Postprocessing) -> Predictions:
        return predictions(*self._arrays(tallies), self.targets, postprocessing)

    def _arrays(self, tallies: Sequence[ClassTally]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return the logits and the truth of all cases, [N, C]."""
        return np.array([tally.logits for tally in tallies]), np.array([tally.truth for tally in tallies])

    def _figures_by_class(self, seen: Predictions) -> dict[str, Figures]:
        columns = {
            "f1": f1_by_class(seen),
            "roc_auc": areas_by_class(seen, roc_auc),
            "average_precision": areas_by_class(seen, average_precision),
        }
        return {
            slug: {name: _rounded(column[place]) for name, column in columns.items()}
            for place, slug in enumerate(slugs(self.targets.names))
        }

    def _report(self, context: StepContext, chosen: Postprocessing, figures: Figures, truth: Any) -> None:
        absent = [name for name, has_case in zip(self.targets.names, truth.any(axis=0), strict=True) if not has_case]
        if absent:
            context.notice(
                f"no validation case has the class {first_of(absent)}: its figures are undefined"
                + (", and its threshold is 0.5." if self.targets.is_multi_label else ".")
            )
        before, after = figures[UNCALIBRATED], figures["expected_calibration_error"]
        context.notice(
            f"temperature {chosen.temperature:g}, fitted on {len(truth)} validation cases: expected calibration error "
            f"{before:.3f} before, {after:.3f} after."
        )
        low, high = BOUNDS
        if not low * 1.01 < chosen.temperature < high * 0.99:
            why = (
                "has too few errors to calibrate probabilities"
                if chosen.temperature < 1
                else "shows no relation between the network's output and the classes"
            )
            context.notice(
                f"the temperature is at a bound of the search ({low:g} to {high:g}): the validation split {why}."
            )


def _figures(seen: Predictions, *, exact: Sequence[str] = ()) -> Figures:
    values = {name: metric(seen) for name, metric in METRICS.items()}
    return {name: value if name in exact else _rounded(value) for name, value in values.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
