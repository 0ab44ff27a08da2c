"""The prepared image of a case as a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medweave_core.contracts.classification_evaluation import ClassCaseFigures, ClassificationEvaluation
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.volume import are_images, modality_of
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.report.overlay import MR_WINDOW_SD, PET_WINDOW_SUV, png_of
from medweave_steps.report.words import figure

NO_CLASS = "no class"


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
    """Return the picture of a case: the image, or of a volume its middle slice, the patient's right on the left."""
    volume_CIJK = folder.volume_CIJK()
    plane_CIJ = np.asarray(volume_CIJK[..., volume_CIJK.shape[-1] // 2], np.float32)
    window = (0.0, 1.0)
    if not are_images(cohort.channels):
        is_pet = modality_of(cohort.channels) == "PT"
        window = cohort.window_hu or (PET_WINDOW_SUV if is_pet else MR_WINDOW_SD)
        plane_CIJ = plane_CIJ[:1, ::-1, ::-1]
    columns, rows = plane_CIJ.shape[1:]
    pixels = np.moveaxis(plane_CIJ, 0, 2).swapaxes(0, 1)
    truth, predicted = _named(case.classes), _named(case.predicted)
    return CasePicture(
        case_id=case.case_id,
        is_correct=case.is_correct,
        png=png_of(pixels if pixels.shape[2] == 3 else pixels[..., 0], window),
        aspect=columns * cohort.spacing_mm[0] / (rows * cohort.spacing_mm[1]),
        alt=f"{case.case_id}: {truth}, predicted {predicted}",
        truth=truth,
        predicted=predicted,
        probability=_probability(case),
    )


def _named(classes: tuple[str, ...]) -> str:
    return ", ".join(classes) or NO_CLASS


def _probability(case: ClassCaseFigures) -> str:
    names = dict.fromkeys((*case.predicted, *case.classes))
    return ", ".join(f"{name} {figure(case.probabilities[name])}" for name in names)
