"""The prepared image of a case as a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.classification_evaluation import ClassCaseFigures, ClassificationEvaluation
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.volume import are_images, are_signals, modality_of
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.report.overlay import MR_WINDOW_SD, PET_WINDOW_SUV, png_of
from medweave_steps.report.words import figure

NO_CLASS = "no class"
CURVE_ROWS = 240
"""Height of the picture of an ECG, pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePicture:
    """A case with its picture.

    Attributes:
        png: data URI.
        aspect: width over height.
        truth, predicted: names of the known and of the predicted classes.
        probability: calibrated probability of the decision, and of the known class where it differs.
    """

    case_id: str
    is_correct: bool
    png: str
    aspect: float
    alt: str
    truth: str
    predicted: str
    probability: str


def worst_cases(evaluation: ClassificationEvaluation, most: int) -> list[ClassCaseFigures]:
    """Return the most confident wrong decisions first, then correct ones of which the model was least sure."""
    ranked = sorted(evaluation.per_case, key=lambda case: (case.is_correct, *_rank(case), case.case_id))
    return ranked[:most]


def _rank(case: ClassCaseFigures) -> tuple[float, ...]:
    if case.is_correct:
        return (case.true_probability,)
    return (-max((case.probabilities[name] for name in case.predicted if name not in case.classes), default=0.0),
            case.true_probability)  # fmt: skip


def picture_of(case: ClassCaseFigures, folder: CaseFolder, cohort: PreparedCohort) -> CasePicture:
    """Return the picture of a case: the image, of a volume its middle slice, the patient's right on the left, or an ECG's curve."""
    volume_CIJK = folder.volume_CIJK()
    if are_signals(cohort.channels):
        pixels, window = curve_of(volume_CIJK[0, :, 0, 0]), (0.0, 1.0)
        aspect = pixels.shape[1] / pixels.shape[0]
    else:
        pixels, window = _plane(volume_CIJK, cohort)
        aspect = pixels.shape[1] * cohort.spacing_mm[0] / (pixels.shape[0] * cohort.spacing_mm[1])
    truth, predicted = _named(case.classes), _named(case.predicted)
    return CasePicture(
        case_id=case.case_id,
        is_correct=case.is_correct,
        png=png_of(pixels, window),
        aspect=aspect,
        alt=f"{case.case_id}: {truth}, predicted {predicted}",
        truth=truth,
        predicted=predicted,
        probability=_probability(case),
    )


def curve_of(signal: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Return a black curve on white, float32 [row, sample]: one column per sample, the largest value at the top."""
    span = float(np.ptp(signal)) or 1.0
    rows = np.rint((signal.max() - signal) / span * (CURVE_ROWS - 1)).astype(int)
    previous = np.concatenate([rows[:1], rows[:-1]])
    low, high = np.minimum(rows, previous), np.maximum(rows, previous)
    number = np.arange(CURVE_ROWS)[:, None]
    return np.where((number >= low) & (number <= high + 1), np.float32(0), np.float32(1))


def _plane(
    volume_CIJK: npt.NDArray[np.floating], cohort: PreparedCohort
) -> tuple[npt.NDArray[np.float32], tuple[float, float]]:
    """Return the pixels of the middle slice, [row, column] or [row, column, color], and the values of black and white."""
    plane_CIJ = np.asarray(volume_CIJK[..., volume_CIJK.shape[-1] // 2], np.float32)
    window = (0.0, 1.0)
    if not are_images(cohort.channels):
        is_pet = modality_of(cohort.channels) == "PT"
        window = cohort.window_hu or (PET_WINDOW_SUV if is_pet else MR_WINDOW_SD)
        plane_CIJ = plane_CIJ[:1, ::-1, ::-1]
    pixels = np.moveaxis(plane_CIJ, 0, 2).swapaxes(0, 1)
    return (pixels if pixels.shape[2] == 3 else pixels[..., 0]), window


def _named(classes: tuple[str, ...]) -> str:
    return ", ".join(classes) or NO_CLASS


def _probability(case: ClassCaseFigures) -> str:
    names = dict.fromkeys((*case.predicted, *case.classes))
    return ", ".join(f"{name} {figure(case.probabilities[name])}" for name in names)
