"""The segmentation of one label, with the parts that a training opens."""

from __future__ import annotations

from medweave_steps.tasks.segmentation.targets import ONE_LABEL
from medweave_steps.tasks.segmentation.training import SegmentationTraining

TASK = SegmentationTraining(targets=ONE_LABEL)
open_sampler = TASK.open_sampler
open_validator = TASK.open_validator
usable_cases = TASK.usable_cases
