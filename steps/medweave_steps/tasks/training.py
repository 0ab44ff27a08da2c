"""What the verbs that train need of a task, bound to the outputs of one model."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.volume import Triple

if TYPE_CHECKING:
    from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
    from medweave_steps.training.data.batch import Sampler
    from medweave_steps.training.loop.validator import Validator
    from medweave_steps.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of a task; a task with options has a subclass, with one `option` per field.

    Their names become options of `medweave-step train`, and keys of the run report. In checkpoints and model cards those are named
    that differ from their default.
    """


class TrainingTask(abc.ABC):
    """A task with the outputs of one model. It is sent to other processes, and two of them with the same outputs are equal."""

    @property
    @abc.abstractmethod
    def num_channels(self) -> int:
        """Return the number of channels of the network's output."""

    @abc.abstractmethod
    def usable_cases(self, prepared: PreparedFolder) -> tuple[list[CaseFolder], list[CaseFolder]]:
        """Return the training and validation cases.

        Raises:
            UserInputError: a split is empty, or the cases lack what the task learns from.
        """

    def input_shape(self, prepared: PreparedFolder) -> Triple | None:
        """Return the voxels along I J K of a network input where the images decide it; None where the options do, as for patches.

        Raises:
            UserInputError: the images have different shapes.
        """
        return None

    def initialized(self, network: Any) -> Any:
        """Return a new network with the weights that the training starts from; by default unchanged."""
        return network

    @abc.abstractmethod
    def open_sampler(
        self,
        recipe: Recipe,
        prepared: PreparedFolder,
        training: Sequence[CaseFolder],
        *,
        whole_volumes: bool = False,
        cache_mib: int | None = None,
    ) -> Sampler:
        """Return the sampler of a training set; reads every case once and leaves its arrays memory-mapped.

        Args:
            whole_volumes: a patch is a case, and an epoch each of them once.
            cache_mib: with whole volumes, memory for cases that a rank has read, MiB.
        """

    @abc.abstractmethod
    def open_loss(self, recipe: Recipe) -> Callable[[Any, Any], Any]:
        """Return the loss: from the network's output and the labels of a batch, both tensors, to a scalar tensor."""

    @abc.abstractmethod
    def open_validator(
        self,
        recipe: Recipe,
        prepared: PreparedFolder,
        validation: Sequence[CaseFolder],
        *,
        window_shape: Triple,
        overlap: float,
        device: Any,
    ) -> Validator:
        """Return the validator of a training set.

        Args:
            overlap: of neighboring windows, as a fraction of the window.
            device: torch.device; None where the validator only judges the tallies of other processes.
        """

    def identity(self) -> dict[str, Any]:
        """Return JSON values that a checkpoint must agree with, besides the options; by default none."""
        return {}

    @abc.abstractmethod
    def card_fields(self, cohort: PreparedCohort) -> dict[str, Any]:
        """Return the fields of the model card that describe the task: `name`, `task`, `labels` and `output`."""

    def training_facts(self, sampler: Any) -> dict[str, Any]:
        """Return facts about the training cases for `training` in the model card, as JSON values."""
        return {}
