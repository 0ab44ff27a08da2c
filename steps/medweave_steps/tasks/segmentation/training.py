"""Segmentation as the verbs that train use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medweave_core.contracts.body_parts import scans_of
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.labels import Label, model_name
from medweave_core.contracts.volume import Triple, modality_of
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.runtime.options import option
from medweave_steps.tasks.segmentation.targets import Targets, parse_regions
from medweave_steps.tasks.training import TaskOptions, TrainingTask
from medweave_steps.training.recipe import Recipe

if TYPE_CHECKING:
    from medweave_steps.tasks.segmentation.sampler import PatchSampler
    from medweave_steps.tasks.segmentation.validation import SegmentationValidator

LESION_SHARE = 0.018
"""Lesion voxels among those of the training patches, about; its logit is -4."""
MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentationOptions(TaskOptions):
    """Options of `--task segmentation`."""

    regions: tuple[str, ...] = option(
        "predict unions of labels that overlap, with one sigmoid output each, as NAME:VALUES, for example 'whole tumor:1,2,3' "
        "'tumor core:2,3' 'enhancing tumor:3' (default: the regions that the training set declares, else softmax over its labels)",
        default=(), metavar="NAME:VALUES",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Raise UsageError for a text that is no region."""
        parse_regions(self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentationTraining(TrainingTask):
    """The segmentation of one label, of several labels, or of regions.

    Attributes:
        targets: outputs of the model, and the voxels without annotation.
    """

    targets: Targets

    @property
    def num_channels(self) -> int:
        """Return the number of channels: with softmax the background has one, too."""
        return self.targets.head.num_channels

    def usable_cases(self, prepared: PreparedFolder) -> tuple[list[CaseFolder], list[CaseFolder]]:
        """Return the training and validation cases, as `cases.usable_cases`."""
        from medweave_steps.tasks.segmentation.cases import usable_cases

        return usable_cases(prepared, self.targets)

    def initialized(self, network: Any) -> Any:
        """Return the network with output biases that predict each label as rarely as patches have it."""
        from medweave_steps.tasks.segmentation.output_bias import start_from_rarity

        start_from_rarity(network, LESION_SHARE, targets=self.targets)
        return network

    def open_sampler(
        self,
        recipe: Recipe,
        prepared: PreparedFolder,
        training: Sequence[CaseFolder],
        *,
        whole_volumes: bool = False,
        cache_mib: int | None = None,
    ) -> PatchSampler:
        """Return the sampler of patches on lesions and elsewhere, or of whole cases."""
        from medweave_steps.tasks.segmentation.sampler import PatchSampler, open_training_case
        from medweave_steps.tasks.segmentation.volumes import VolumeSampler

        cohort = prepared.cohort
        has_lungs = cohort.crop == "lungs"
        opened = [
            open_training_case(
                case,
                spacing_mm=cohort.spacing_mm,
                seed=recipe.seed + place,
                has_lungs=has_lungs,
                targets=self.targets,
            )
            for place, case in enumerate(training)
        ]
        options: dict[str, Any] = {
            "patch_shape": recipe.patch_shape, "batch_size": recipe.batch_size, "window_hu": cohort.window_hu,
            "lesion_share": recipe.lesion_share, "bright_share": recipe.bright_share, "thick_share": recipe.thick_share,
            "augment": recipe.augments, "seed": recipe.seed, "targets": self.targets,
            "scaled_range": prepared.scaled_range, "is_fully_augmented": recipe.augmentation == "full",
        }  # fmt: skip
        if not whole_volumes:
            return PatchSampler(opened, **options)
        sampler = VolumeSampler(opened, cache_mib=cache_mib, **options)
        sampler.check_shapes()
        return sampler

    def open_loss(self, recipe: Recipe) -> Callable[[Any, Any], Any]:
        """Return Dice plus cross-entropy with the weights of the options."""
        from medweave_steps.tasks.segmentation.loss import dice_cross_entropy

        return dice_cross_entropy(
            dice_weight=recipe.dice_weight,
            cross_entropy_weight=recipe.cross_entropy_weight,
            over_batch=recipe.dice == "batch",
            smoothing=recipe.dice_smoothing,
            targets=self.targets,
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
    ) -> SegmentationValidator:
        """Return the validator: sliding windows over whole cases."""
        from medweave_steps.tasks.segmentation.validation import SegmentationValidator

        return SegmentationValidator(
            cases=validation,
            targets=self.targets,
            spacing_mm=prepared.cohort.spacing_mm,
            window_hu=prepared.cohort.window_hu,
            scaled_range=prepared.scaled_range,
            window_shape=window_shape,
            overlap=overlap,
            max_false_positives=recipe.max_false_positives,
            device=device,
        )

    def identity(self) -> dict[str, Any]:
        """Return the outputs, if there are several; a training of one label has none, as before there could be several."""
        outputs = self.targets.outputs
        return {"outputs": [output.text for output in outputs]} if self.num_channels > 1 else {}

    def card_fields(self, cohort: PreparedCohort) -> dict[str, Any]:
        """Return name, task, labels and output of the model card."""
        head, modality = self.targets.head, modality_of(cohort.channels)
        scans = {scans_of(label, modality) for label in head.labels}
        where = scans.pop() if len(scans) == 1 else modality
        where += "" if modality == "CT" else f" ({', '.join(cohort.channels)})"
        return {
            "name": name_of(head.labels),
            "task": f"Segmentation of {', '.join(output.name for output in self.targets.outputs)} in {where}",
            "labels": head.labels,
            "output": head.output,
        }

    def training_facts(self, sampler: Any) -> dict[str, Any]:
        """Return the number of lesions."""
        return {"num_training_lesions": len(sampler.lesions)}


def name_of(labels: Sequence[Label]) -> str:
    """Return the default name of a model: the names of its first three labels, with an anatomic region that all have named once."""
    places = {(label.anatomy, label.laterality) for label in labels}
    bare = [dataclasses.replace(label, anatomy=None, laterality=None) for label in labels]
    named = [labels[0], *(bare if len(places) == 1 else labels)[1:MOST_NAMES]]
    names = [model_name(label) for label in named]
    more = len(labels) - len(names)
    return "-".join(names) + (f"-and-{more}-more" if more else "")
