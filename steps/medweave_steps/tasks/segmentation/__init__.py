"""Segmentation: a label for each voxel; one label, several exclusive labels, or regions that overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.gate import GateCase
from medweave_core.contracts.model import ModelCard
from medweave_steps.inference.head import OutputHead
from medweave_steps.tasks import Calibration, Task
from medweave_steps.tasks.segmentation.targets import parse_regions, targets_of_card, targets_of_cohort
from medweave_steps.tasks.segmentation.training import SegmentationOptions, SegmentationTraining

if TYPE_CHECKING:
    from medweave_steps.inference.engine import Engine
    from medweave_steps.io.cohort.prepared import CaseFolder
    from medweave_steps.tasks.segmentation.gate_judge import SegmentationJudge


class SegmentationTask(Task):
    """The segmentation of volumes."""

    name = "segmentation"
    Options = SegmentationOptions

    def training_of_cohort(self, cohort: PreparedCohort, options: SegmentationOptions) -> SegmentationTraining:
        """Return what a new model learns: the regions of the options or of the cohort, else the labels of the cohort."""
        return SegmentationTraining(targets=targets_of_cohort(cohort, parse_regions(options.regions)))

    def training_of_card(self, card: ModelCard, cohort: PreparedCohort) -> SegmentationTraining:
        """Return what the model has learned: its labels or regions."""
        return SegmentationTraining(targets=targets_of_card(card, cohort))

    def num_channels(self, card: ModelCard) -> int:
        """Return the number of channels of the network's output."""
        return OutputHead.of(card).num_channels

    def decisions(self, logits_BCIJK: Any, card: ModelCard) -> Any:
        """Return the decision in each voxel, as `judging.decisions`."""
        from medweave_steps.tasks.segmentation.judging import decisions

        return decisions(logits_BCIJK, card)

    def check_truth(self, cohort: PreparedCohort, card: ModelCard) -> None:
        """Refuse a cohort whose labels are not those that the model predicts."""
        from medweave_steps.tasks.segmentation.judging import check_truth

        check_truth(cohort, card)

    def predict(self, engine: Engine, volume_CIJK: Any, card: ModelCard) -> Any:
        """Return the probabilities of a whole volume, float32 [C, I, J, K]."""
        from medweave_steps.inference.windows import predict_probability

        return predict_probability(engine, volume_CIJK, card)

    def judge_case(self, folder: CaseFolder, prediction: Any, card: ModelCard) -> GateCase:
        """Return Dice and lesions of each label or region, for probabilities as `predict` returns them."""
        from medweave_steps.tasks.segmentation.judging import judge_case

        return judge_case(folder, prediction, card)

    def judge(self) -> SegmentationJudge:
        """Return how models are judged: by Dice, lesion sensitivity and false positives per scan."""
        from medweave_steps.tasks.segmentation.gate_judge import SegmentationJudge

        return SegmentationJudge()

    def calibration_windows(
        self, cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int
    ) -> Calibration:
        """Return windows of training cases, half of them around lesions."""
        from medweave_steps.tasks.segmentation.calibration import calibration

        return calibration(cases, card, num_windows=num_windows, seed=seed)


TASK: Any = SegmentationTask()
