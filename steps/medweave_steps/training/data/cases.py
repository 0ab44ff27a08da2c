"""The usable cases of a training set, and the sampler that cuts patches from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medweave_core.contracts.labels import only_label
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.io.findings import first_of
from medweave_steps.training.data.patches import PatchSampler, open_training_case
from medweave_steps.training.data.volumes import VolumeSampler
from medweave_steps.training.recipe import Recipe


def usable_cases(prepared: PreparedFolder) -> tuple[list[CaseFolder], list[CaseFolder]]:
    """Return training and validation cases.

    Raises:
        UserInputError: there are several foreground labels, a split is empty, a case has no label, or no training case
            has a lesion.
    """
    only_label(prepared.cohort.labels, "the training set")
    splits = {name: prepared.cases(name) for name in ("train", "validation")}
    for name, cases in splits.items():
        if not cases:
            raise UserInputError(
                f"the training set has no {'training' if name == 'train' else name} case.",
                seen=", ".join(f"{len(listed)} {split}" for split, listed in splits.items()),
                expected="at least one case in each of train and validation",
                do="run preprocess with more cases, or with a larger fraction for the empty split in --fractions",
            )
    missing = [c.case.case_id for cases in splits.values() for c in cases if not c.case.has_label]
    if missing:
        shown = first_of(missing)
        raise UserInputError(
            "training cases have no ground truth.",
            seen=f"no label for {shown}",
            expected="a label for every training and validation case",
            do="add the masks and run check and preprocess again, or remove these cases from the cohort",
        )
    if not any(c.case.num_lesions for c in splits["train"]):
        raise UserInputError(
            "no training case has a lesion.",
            seen=f"{len(splits['train'])} training cases, 0 lesions",
            expected="at least one lesion",
            do="add cases with lesions, or correct the labels that the cohort declares",
        )
    return splits["train"], splits["validation"]


def open_sampler(
    recipe: Recipe,
    prepared: PreparedFolder,
    training: Sequence[CaseFolder],
    *,
    whole_volumes: bool = False,
    cache_mib: int | None = None,
) -> PatchSampler:
    """Return the sampler of a training set; reads every case once and leaves its arrays memory-mapped.

    Args:
        whole_volumes: a patch is a case, and an epoch each of them once.
        cache_mib: with whole volumes, memory for cases that a rank has read, MiB.
    """
    cohort = prepared.cohort
    has_lungs = cohort.crop == "lungs"
    opened = [
        open_training_case(case, spacing_mm=cohort.spacing_mm, seed=recipe.seed + place, has_lungs=has_lungs)
        for place, case in enumerate(training)
    ]
    options: dict[str, Any] = {
        "patch_shape": recipe.patch_shape, "batch_size": recipe.batch_size, "window_hu": cohort.window_hu,
        "lesion_share": recipe.lesion_share, "bright_share": recipe.bright_share, "thick_share": recipe.thick_share,
        "augment": recipe.augments, "seed": recipe.seed, "scaled_range": prepared.scaled_range,
        "is_fully_augmented": recipe.augmentation == "full",
    }  # fmt: skip
    if not whole_volumes:
        return PatchSampler(opened, **options)
    sampler = VolumeSampler(opened, cache_mib=cache_mib, **options)
    sampler.check_shapes()
    return sampler
