"""Tasks: what a model predicts and how it is judged. Training, export, compression and the gate do not know which one is used.

A task is an object of a class derived from `Task`. medweave's own are in `BUILT_IN`; other packages register theirs as entry points
of the group `medweave.tasks`:

    [project.entry-points."medweave.tasks"]
    my-task = "my_package.task:TASK"

A task of another package is imported only when it is used; `train` imports medweave's own, because its help lists their options.
Heavy libraries are imported only inside the methods of a task: workers that segment have no torch.
"""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.runtime import plugins
from medweave_steps.runtime.options import Variants
from medweave_steps.tasks.training import TaskOptions, TrainingTask

if TYPE_CHECKING:
    from medweave_core.contracts.cohort import PreparedCase, PreparedCohort
    from medweave_core.contracts.model import ModelCard
    from medweave_steps.inference.engine import Engine
    from medweave_steps.io.cohort.prepared import CaseFolder
    from medweave_steps.networks import OutputKind
    from medweave_steps.tasks.judge import Judge

GROUP: plugins.Group = "medweave.tasks"
BUILT_IN: Mapping[str, str] = {
    "segmentation": "medweave_steps.tasks.segmentation",
    "classification": "medweave_steps.tasks.classification",
}


class LazyInputs(Sequence[Any]):
    """Network inputs that are computed whenever they are read: some hundred windows can take more memory than a job has.

    Args:
        sources: what each input is computed from.
        read: computes an input.
    """

    def __init__(self, sources: Sequence[Any], read: Callable[[Any], Any]) -> None:
        self._sources, self._read = sources, read

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, number: Any) -> Any:
        return self._read(self._sources[number])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Network inputs for the calibration of a quantized model.

    Attributes:
        inputs_BCIJK: float32 arrays of the network's input, batch size 1.
        num_cases: training cases that they come from.
        figures: what they show, for the model card: name to number.
        text: the same for the user, such as `8 of them around lesions`.
        sha256: digest over all inputs and their origin.
    """

    inputs_BCIJK: Sequence[Any]
    num_cases: int
    figures: Mapping[str, Any]
    text: str
    sha256: str


def no_training_case() -> UserInputError:
    """Return the error of `Task.calibration_windows` for a training set without a training case."""
    return UserInputError(
        "there is no training case for calibration.",
        seen="no training case in the training set",
        expected="at least one case of split 'train'",
        do="use the training_set folder of preprocess with --purpose training",
    )


class Task(abc.ABC):
    """The contract between a task and the steps that train, export, quantize and judge models.

    A task that only trains implements the first two methods; the other steps then refuse its models.

    Attributes:
        name: as `--task`, model cards and entry points have it.
        Options: class of the task's own options of `train`.
        output_kind: what its networks give: one logit per voxel, or one per class.
        decided: what a decision is about, as messages have it.
        truth: what a case needs for its truth to be known, as messages have it.
    """

    name: ClassVar[str]
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    output_kind: ClassVar[OutputKind] = "voxels"
    decided: ClassVar[str] = "voxels"
    truth: ClassVar[str] = "label.npy"

    @abc.abstractmethod
    def training_of_cohort(self, cohort: PreparedCohort, options: Any) -> TrainingTask:
        """Return the task as a new model learns it from a training set.

        Args:
            options: an `Options`.
        Raises:
            UserInputError: the options do not fit the training set.
        """

    @abc.abstractmethod
    def training_of_card(self, card: ModelCard, cohort: PreparedCohort) -> TrainingTask:
        """Return the task as a trained model learns it further from a training set."""

    def num_channels(self, card: ModelCard) -> int:
        """Return the number of channels of the network's output."""
        raise self._unsupported()

    def output_shape(self, card: ModelCard, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the network's output; by default one logit per voxel and channel.

        Args:
            input_shape: of the network's input, B, C, I, J, K.
        """
        return (input_shape[0], self.num_channels(card), *input_shape[2:])

    def decisions(self, logits_BCIJK: Any, card: ModelCard) -> Any:
        """Return what the model decides in each voxel, as integers [B, I, J, K]: equal integers are equal decisions.

        Args:
            logits_BCIJK: float32 array of `output_shape`.
        """
        raise self._unsupported()

    def has_truth(self, case: PreparedCase) -> bool:
        """Return True for a case whose truth is known; by default one with a label map."""
        return case.has_label

    def check_truth(self, cohort: PreparedCohort, card: ModelCard) -> None:
        """Check that the truth of prepared cases is what a model predicts, before it is judged or calibrated with them.

        Raises:
            UserInputError: the truth is of something else than the model predicts.
        """
        raise self._unsupported()

    def predict(self, engine: Engine, volume_CIJK: Any, card: ModelCard) -> Any:
        """Return the model's prediction for a prepared volume, for `judge_case`; `gate` measures how long it takes.

        Raises:
            InternalError: the network gave values that are not finite.
        """
        raise self._unsupported()

    def judge_case(self, folder: CaseFolder, prediction: Any, card: ModelCard) -> Any:
        """Return how well a prediction agrees with the truth of a prepared case, as the `judge` takes it."""
        raise self._unsupported()

    def judge(self) -> Judge:
        """Return how `gate` compares and judges models by their cases."""
        raise self._unsupported()

    def calibration_windows(
        self, cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int
    ) -> Calibration:
        """Return network inputs for the calibration of a quantized model, drawn from training cases.

        Args:
            num_windows: how many, at least 1.
            seed: the same seed and cases give the same inputs.
        Raises:
            UserInputError: there is no training case.
        """
        raise self._unsupported()

    def _unsupported(self) -> UsageError:
        return UsageError(
            f"the task '{self.name}' does not support this step.",
            seen=f"task {self.name}, which only trains models",
            expected="a task that also exports, quantizes or judges its models",
            do="leave out this step, or update the package that defines the task",
        )


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


OPTIONS = Variants(
    selector="task",
    built_in=lambda: {name: task_named(name).Options for name in BUILT_IN},
    options_of=lambda name: task_named(name).Options,
)


def _is_task(value: Any) -> bool:
    return isinstance(value, Task)
