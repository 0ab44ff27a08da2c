"""Segmentation: a label for each voxel; one label, several exclusive labels, or regions that overlap."""

from __future__ import annotations

from typing import Any

from medweave_core.contracts.model import ModelCard
from medweave_steps.inference.head import OutputHead
from medweave_steps.tasks import Task


class SegmentationTask(Task):
    """The segmentation of volumes."""

    name = "segmentation"

    def num_channels(self, card: ModelCard) -> int:
        """Return the number of channels of the network's output."""
        return OutputHead.of(card).num_channels


TASK: Any = SegmentationTask()
