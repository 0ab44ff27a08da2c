"""Classification: a class for each image, volume or row of a table, or any number of classes (multi-label)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from medweave_core.contracts.cohort import PreparedCase, PreparedCohort
from medweave_core.contracts.gate import GateClassCase
from medweave_core.contracts.model import ModelCard
from medweave_steps.tasks import Calibration, Task
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.tasks.classification.training import (
    ClassificationOptions,
    ClassificationTraining,
    options_of_card,
)
from medweave_steps.tasks.judge import Judge

if TYPE_CHECKING:
    from medweave_steps.inference.engine import Engine
    from medweave_steps.io.cohort.prepared import CaseFolder


class ClassificationTask(Task):
    """The classification of images and volumes."""

    name = "classification"
    Options = ClassificationOptions
    output_kind = "classes"
    decided = "images"
    truth = "known classes"

    def training_of_cohort(self, cohort: PreparedCohort, options: ClassificationOptions) -> ClassificationTraining:
        """Return what a new model learns: the classes of the cohort."""
        from medweave_steps.tasks.classification.cases import targets_of_cohort

        return ClassificationTraining.of(cohort, targets_of_cohort(cohort), options)

    def training_of_card(self, card: ModelCard, cohort: PreparedCohort) -> ClassificationTraining:
        """Return what the model has learned: its classes, with the options of its training."""
        return ClassificationTraining.of(cohort, ClassTargets.of(card), options_of_card(card.training))

    def num_channels(self, card: ModelCard) -> int:
        """Return the number of classes."""
        return len(card.classes)

    def output_shape(self, card: ModelCard, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the network's output: one logit for each class."""
        return (input_shape[0], len(card.classes))

    def decisions(self, logits_BCIJK: Any, card: ModelCard) -> Any:
        """Return the class of each image, int64 [B]; multi-label, 0 or 1 for each class, int64 [B, C].

        Args:
            logits_BCIJK: [B, C].
        """
        targets = ClassTargets.of(card)
        probability = targets.probabilities(logits_BCIJK, temperature=card.postprocessing.temperature)
        decided = targets.decided(probability, card.postprocessing).astype(np.int64)
        return decided if targets.is_multi_label else decided.argmax(axis=1)

    def has_truth(self, case: PreparedCase) -> bool:
        """Return True for a case with known classes."""
        return case.classes is not None or bool(case.rows_by_class)

    def check_truth(self, cohort: PreparedCohort, card: ModelCard) -> None:
        """Refuse a cohort whose classes are not those that the model predicts."""
        from medweave_steps.tasks.classification.cases import check_case_classes, check_classes_agree
        from medweave_steps.tasks.classification.fit import TABLES, refuse_modalities

        refuse_modalities(cohort, TABLES, what="used to calibrate or compare models")
        targets = ClassTargets.of(card)
        check_classes_agree(cohort, targets, of=f"the model '{card.name}'")
        check_case_classes([case for case in cohort.cases if case.classes is not None], targets)

    def predict(self, engine: Engine, volume_CIJK: Any, card: ModelCard) -> Any:
        """Return the calibrated probability of each class for a whole image, float64 [C]."""
        from medweave_steps.tasks.classification.judging import predict_classes

        return predict_classes(engine, volume_CIJK, card)

    def judge_case(self, folder: CaseFolder, prediction: Any, card: ModelCard) -> GateClassCase:
        """Return true and predicted classes of a case, for probabilities as `predict` returns them."""
        from medweave_steps.tasks.classification.judging import judge_case

        return judge_case(folder, prediction, card)

    def judge(self) -> Judge:
        """Return how models are judged: by accuracy and macro-F1."""
        from medweave_steps.tasks.classification.judging import ClassificationJudge

        return ClassificationJudge()

    def calibration_windows(
        self, cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int
    ) -> Calibration:
        """Return whole training images, of each class in turn."""
        from medweave_steps.tasks.classification.calibration import calibration

        return calibration(cases, card, num_windows=num_windows, seed=seed)


TASK: Any = ClassificationTask()
