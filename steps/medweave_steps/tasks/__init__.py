"""Tasks: what a model predicts and how it is judged. Training, export, compression and the gate do not know which one is used.

A task is an object of a class derived from `Task`. medweave's own are in `BUILT_IN`; other packages register theirs as entry points
of the group `medweave.tasks`:

    [project.entry-points."medweave.tasks"]
    my-task = "my_package.task:TASK"

A task's module is imported only when the task is used, and its heavy libraries only inside its methods: workers that segment have
no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError
from medweave_steps.runtime import plugins

if TYPE_CHECKING:
    from medweave_core.contracts.model import ModelCard
    from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder

GROUP: plugins.Group = "medweave.tasks"
BUILT_IN: Mapping[str, str] = {"segmentation": "medweave_steps.tasks.segmentation"}


class Task:
    """The contract between a task and the steps that train, export, quantize and judge models.

    Attributes:
        name: as `--task`, model cards and entry points have it.
    """

    name: ClassVar[str]

    def usable_cases(self, prepared: PreparedFolder) -> tuple[list[CaseFolder], list[CaseFolder]]:
        """Return the training and validation cases.

        Raises:
            UserInputError: a split is empty, or the cases lack what the task learns from.
        """
        raise NotImplementedError

    def num_channels(self, card: ModelCard) -> int:
        """Return the number of channels of the network's output."""
        raise NotImplementedError

    def decisions(self, logits_BCIJK: Any, card: ModelCard) -> Any:
        """Return what the model decides for logits, as an array of integers: equal decisions are equal results.

        Args:
            logits_BCIJK: float32 array.
        """
        raise NotImplementedError

    def judge_case(self, folder: CaseFolder, prediction: Any, card: ModelCard) -> Any:
        """Return how well a prediction agrees with the truth of a prepared case, for `gate`."""
        raise NotImplementedError

    def calibration_windows(self, cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int) -> Any:
        """Return network inputs for the calibration of a quantized model, drawn from training cases."""
        raise NotImplementedError


def task_names() -> tuple[str, ...]:
    """Return the names of all installed tasks, medweave's own first."""
    return (*BUILT_IN, *(name for name in plugins.names_of(GROUP) if name not in BUILT_IN))


def task_named(name: str) -> Task:
    """Return the task of this name.

    Raises:
        UsageError: it does not exist; the message names the closest match.
        BackendMissingError: another package defines it and cannot be imported.
    """
    if name in BUILT_IN:
        built_in: Task = importlib.import_module(BUILT_IN[name]).TASK
        return built_in
    names = task_names()
    if name in names:
        found: Task = plugins.load(
            GROUP, name, expected=f"an object of a class derived from {__name__}.Task", is_valid=_is_task
        )
        return found
    raise UsageError(
        f"unknown task '{name}'.",
        seen=f"task {name}",
        expected=f"one of {', '.join(names)}",
        do=closest(name, names) or "choose one of the listed tasks",
    )


def _is_task(value: Any) -> bool:
    return isinstance(value, Task)
