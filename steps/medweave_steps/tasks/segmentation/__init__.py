"""Segmentation: a label for each voxel; one label, several exclusive labels, or regions that overlap."""

from __future__ import annotations

from typing import Any

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.model import ModelCard
from medweave_steps.inference.head import OutputHead
from medweave_steps.tasks import Task
from medweave_steps.tasks.segmentation.targets import parse_regions, targets_of_card, targets_of_cohort
from medweave_steps.tasks.segmentation.training import SegmentationOptions, SegmentationTraining


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


TASK: Any = SegmentationTask()
