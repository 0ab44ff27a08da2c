"""Classification as the verbs that train use it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.volume import MODALITY_NAMES, Triple, is_table, modality_of
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.io.findings import first_of
from medweave_steps.runtime.options import check_option, option
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.tasks.training import TaskOptions, TrainingTask
from medweave_steps.training.recipe import Recipe

if TYPE_CHECKING:
    from medweave_steps.tasks.classification.sampler import ImageSampler
    from medweave_steps.tasks.classification.table_sampler import TableSampler
    from medweave_steps.tasks.classification.validation import ClassificationValidator

MOST_NAMES = 3
AXES = ("I", "J", "K")
_ONE_VOXEL = (1, 1, 1)
_OF_SEGMENTATION = (
    "dice_weight", "dice", "dice_smoothing", "cross_entropy_weight", "lesion_share", "bright_share", "thick_share",
    "max_false_positives",
)  # fmt: skip
"""Options of the recipe without a meaning here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationOptions(TaskOptions):
    """Options of `--task classification`."""

    class_weights: Literal["none", "balanced"] = option(
        "weights of the classes in the loss: none, or balanced, by which all classes count equally; needs --sampling natural",
        default="none",
    )
    label_smoothing: float = option(
        "label smoothing: how far the truth of the loss is moved towards equal probabilities (0 to less than 1)",
        default=0.0,
    )
    sampling: Literal["balanced", "natural"] = option(
        "sampling of the cases: balanced draws each class with equal probability, natural each case; --epochs needs natural",
        default="balanced",
    )
    flip_axes: tuple[str, ...] = option(
        "axes (I, J, K) along which augmentation mirrors images; I J suits photographs of skin. By default none: mirroring along "
        "I exchanges left and right, which matters in radiographs and in most volumes",
        default=(), metavar="AXIS",
    )  # fmt: skip
    best_by: Literal["score", "loss"] = option(
        "criterion of the best weights and of early stopping (--patience): score, the largest macro-F1 of the validation cases; "
        "loss, the smallest log loss, which is the cross-entropy without class weights and label smoothing",
        default="score",
    )

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot be used."""
        twice = self.class_weights == "balanced" and self.sampling == "balanced"
        expected = "none, or set --sampling natural: balanced sampling already shows each class equally often"
        check_option(not twice, "class_weights", self.class_weights, expected)
        check_option(
            0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "0 or more, and less than 1"
        )
        fits = set(self.flip_axes) <= set(AXES) and len(set(self.flip_axes)) == len(self.flip_axes)
        check_option(fits, "flip_axes", self.flip_axes, "some of I J K, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationTraining(TrainingTask):
    """The classification of whole images or volumes.

    Attributes:
        targets: classes of the model.
        options: of the training.
        counts: training cases of each class.
        num_training: training cases.
    """

    targets: ClassTargets
    options: ClassificationOptions
    counts: tuple[int, ...]
    num_training: int

    @staticmethod
    def of(cohort: PreparedCohort, targets: ClassTargets, options: ClassificationOptions) -> ClassificationTraining:
        """Return the training of a model with these classes on a training set."""
        from medweave_steps.tasks.classification.cases import counts_of

        training = [case for case in cohort.cases if case.split == "train"]
        return ClassificationTraining(
            targets=targets,
            options=options,
            counts=tuple(counts_of(training, targets).values()),
            num_training=sum(case.num_samples for case in training),
        )

    @property
    def num_channels(self) -> int:
        """Return the number of classes."""
        return len(self.targets.classes)

    def usable_cases(self, prepared: PreparedFolder) -> tuple[list[CaseFolder], list[CaseFolder]]:
        """Return the training and validation cases, as `cases.usable_cases`."""
        from medweave_steps.tasks.classification.cases import usable_cases

        return usable_cases(prepared, self.targets)

    def input_shape(self, prepared: PreparedFolder) -> Triple:
        """Return the shape of the images of both splits."""
        from medweave_steps.tasks.classification.cases import common_shape

        if is_table(prepared.cohort.channels):
            return _ONE_VOXEL
        return common_shape([*prepared.cases("train"), *prepared.cases("validation")])

    def open_sampler(
        self,
        recipe: Recipe,
        prepared: PreparedFolder,
        training: Sequence[CaseFolder],
        *,
        whole_volumes: bool = False,
        cache_mib: int | None = None,
    ) -> ImageSampler | TableSampler:
        """Return the sampler of whole images, drawn by class or by case, or each once per epoch; of a table, of its rows.

        Raises:
            UsageError: an option of the recipe that has no meaning here was set.
        """
        from medweave_steps.tasks.classification.cases import common_shape
        from medweave_steps.tasks.classification.sampler import EpochSampler, ImageSampler

        _check_recipe(recipe)
        if is_table(prepared.cohort.channels):
            return self._open_table(recipe, prepared, training, in_epochs=whole_volumes, cache_mib=cache_mib)
        options: dict[str, Any] = {
            "targets": self.targets, "shape": common_shape(training), "batch_size": recipe.batch_size,
            "window_hu": prepared.cohort.window_hu, "scaled_range": prepared.scaled_range, "augment": recipe.augments,
            "flip_axes": [AXES.index(axis) for axis in self.options.flip_axes], "seed": recipe.seed,
        }  # fmt: skip
        if whole_volumes:
            expected = "natural: with --epochs, each case is used exactly once per epoch"
            check_option(self.options.sampling == "natural", "sampling", self.options.sampling, expected)
            return EpochSampler(training, cache_mib=cache_mib, **options)
        return ImageSampler(training, is_balanced=self.options.sampling == "balanced", **options)

    def _open_table(
        self, recipe: Recipe, prepared: PreparedFolder, training: Sequence[CaseFolder], *, in_epochs: bool,
        cache_mib: int | None,
    ) -> TableSampler:  # fmt: skip
        """Return the sampler of a table.

        Raises:
            UsageError: an option that has no meaning for rows was set.
        """
        from medweave_steps.tasks.classification.table_sampler import TableSampler

        check_option(
            in_epochs, "epochs", None, "a number, with the verb train: each row of a table is used once per epoch"
        )
        expected = "natural, for a table; encode-table --ratio balances its classes"
        check_option(self.options.sampling == "natural", "sampling", self.options.sampling, expected)
        check_option(not self.options.flip_axes, "flip_axes", self.options.flip_axes, "no value, for a table")
        check_option(not recipe.augment, "augment", recipe.augment, "no value: rows of a table are not augmented")
        return TableSampler(
            training, targets=self.targets, num_features=len(prepared.cohort.channels), batch_size=recipe.batch_size,
            seed=recipe.seed,
        )  # fmt: skip

    def open_loss(self, recipe: Recipe) -> Callable[[Any, Any], Any]:
        """Return the cross-entropy with the weights and the smoothing of the options."""
        from medweave_steps.tasks.classification.loss import balanced_weights, classification_loss

        weights = None
        if self.options.class_weights == "balanced":
            weights = balanced_weights(self.counts, self.num_training, is_multi_label=self.targets.is_multi_label)
        return classification_loss(
            num_classes=self.num_channels,
            is_multi_label=self.targets.is_multi_label,
            class_weights=weights,
            label_smoothing=self.options.label_smoothing,
        )

    def open_validator(
        self,
        recipe: Recipe,
        prepared: PreparedFolder,
        validation: Sequence[CaseFolder],
        *,
        window_shape: Triple,
        overlap: float,
        device: Any,
    ) -> ClassificationValidator:
        """Return the validator of whole images; a window is a whole image, so they do not overlap.

        Raises:
            UsageError: the window is not a whole image.
        """
        from medweave_steps.tasks.classification.cases import common_shape
        from medweave_steps.tasks.classification.validation import ClassificationValidator

        compares_loss = self.options.best_by == "loss"
        if is_table(prepared.cohort.channels):
            from medweave_steps.tasks.classification.table_validation import TableValidator

            return TableValidator(
                cases=validation, targets=self.targets, window_hu=None, scaled_range=prepared.scaled_range, device=device,
                num_features=len(prepared.cohort.channels), compares_loss=compares_loss,
            )  # fmt: skip
        shape = common_shape(validation)
        expected = f"{' '.join(map(str, shape))}, the size of the images"
        check_option(tuple(window_shape) == shape, "window_shape", window_shape, expected)
        return ClassificationValidator(
            cases=validation,
            targets=self.targets,
            window_hu=prepared.cohort.window_hu,
            scaled_range=prepared.scaled_range,
            device=device,
            compares_loss=compares_loss,
        )

    def identity(self) -> dict[str, Any]:
        """Return the classes."""
        return {"classes": list(self.targets.names)}

    def card_fields(self, cohort: PreparedCohort) -> dict[str, Any]:
        """Return name, task, labels, classes and output of the model card."""
        modality = modality_of(cohort.channels)
        where = MODALITY_NAMES[modality] + (f" ({', '.join(cohort.channels)})" if modality in ("MR", "PT") else "")
        kind = "findings" if self.targets.is_multi_label else "classes"
        return {
            "name": name_of(self.targets),
            "task": f"Classification into {self.num_channels} {kind} ({first_of(self.targets.names)}) in {where}",
            "labels": (),
            "classes": self.targets.classes,
            "output": self.targets.output,
        }

    def training_facts(self, sampler: Any) -> dict[str, Any]:
        """Return the number of training cases of each class."""
        return {"num_training_cases_by_class": dict(zip(self.targets.names, self.counts, strict=True))}


def options_of_card(training: Mapping[str, Any]) -> ClassificationOptions:
    """Return the task's options of a trained model; cards name those that differ from their default."""
    names = [field.name for field in dataclasses.fields(ClassificationOptions)]
    values: dict[str, Any] = {name: training[name] for name in names if name in training}
    if "flip_axes" in values:
        values["flip_axes"] = tuple(values["flip_axes"])
    return ClassificationOptions(**values)


def name_of(targets: ClassTargets) -> str:
    """Return the default name of a model: the names of its first three classes."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "class" for name in targets.names]
    more = len(slugs) - MOST_NAMES
    return "-".join(slugs[:MOST_NAMES]) + (f"-and-{more}-more" if more > 0 else "")


def _check_recipe(recipe: Recipe) -> None:
    expected = "no value: the option applies only to --task segmentation"
    defaults = {field.name: field.default for field in dataclasses.fields(Recipe)}
    for name in _OF_SEGMENTATION:
        value = getattr(recipe, name)
        check_option(value == defaults[name], name, value, expected)
    check_option(
        recipe.augmentation == "basic", "augmentation", recipe.augmentation, "basic with --task classification"
    )
