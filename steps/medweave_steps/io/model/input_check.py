"""Comparison of prepared cases with the input contract of a model's card."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import VolumeInfo, are_images, modality_of
from medweave_core.errors import UserInputError
from medweave_steps.io.geometry import ras_axes
from medweave_steps.io.model.folder import holds_window

_SAME_MM = 1e-4


def check_channels(card: ModelCard, cohort: PreparedCohort) -> None:
    """Compare number, names and order of the channels.

    Raises:
        UserInputError: they differ; the message gives both.
    """
    wanted = card.input.channel_names
    if wanted != cohort.channels or card.input.channels != len(wanted):
        raise misfit(
            card,
            "this batch",
            f"{_counted(len(cohort.channels))}: {', '.join(cohort.channels)} (cohort.json)",
            f"{_counted(card.input.channels)}: {', '.join(wanted)} (model_card.json, input)",
        )


def check_inputs(card: ModelCard, cohort: PreparedCohort, infos: Sequence[VolumeInfo]) -> None:
    """Compare modality, spacing, window, unit, axes and crop of every case.

    Images have no fixed spacing: their size in pixels counts.

    Raises:
        UserInputError: one does not fit; the first such case and what differs are named.
    """
    for info in infos:
        for seen, expected, file, is_same in _compared(card, cohort, info):
            if not is_same:
                raise misfit(card, info.case_id, f"{seen} ({file})", f"{expected} (model_card.json, input)")


def _compared(card: ModelCard, cohort: PreparedCohort, info: VolumeInfo) -> Iterable[tuple[str, str, str, bool]]:
    wanted = card.input
    modality = modality_of(cohort.channels)
    yield f'modality "{modality}"', f'modality "{wanted.modality}"', "cohort.json", modality == wanted.modality
    spacing = wanted.spacing_mm if are_images(cohort.channels) else info.grid.spacing_mm
    same = all(abs(a - b) < _SAME_MM for a, b in zip(spacing, wanted.spacing_mm, strict=True))
    yield f"spacing {_mm(spacing)}", f"spacing {_mm(wanted.spacing_mm)}", "volume_info.json", same
    yield (
        f"values clipped to {_hu(info.window_hu)}",
        f"values clipped to {_hu(wanted.window_hu)}",
        "volume_info.json",
        holds_window(info.window_hu, wanted.window_hu),
    )
    yield f"unit {info.unit}", f"unit {wanted.unit}", "volume_info.json", info.unit == wanted.unit
    axes, flipped = ras_axes(info.grid)
    letters = "".join(
        ("LPS" if flip else "RAS")[world] for _, world, flip in sorted((axes[w], w, flipped[w]) for w in range(3))
    )
    yield (
        f"axes {letters}",
        f"axes {wanted.orientation}",
        "volume_info.json",
        letters == wanted.orientation,
    )
    yield f"crop '{cohort.crop}'", f"crop '{wanted.crop}'", "cohort.json", cohort.crop == wanted.crop
    masks = {True: "voxels outside of a brain mask set to 0", False: "no brain mask applied"}
    is_same = info.has_brain_mask == wanted.has_brain_mask
    yield masks[info.has_brain_mask], masks[wanted.has_brain_mask], "volume_info.json", is_same


def misfit(card: ModelCard, case: str, seen: str, expected: str) -> UserInputError:
    """Return the error that a model's input contract does not match a case or batch."""
    return UserInputError(
        f"the model '{card.name}' does not match {case}.",
        seen=seen,
        expected=expected,
        do="run preprocess on the cohort with --segmentation-model and this model; do not edit volume_info.json by hand",
    )


def _counted(number: int) -> str:
    return f"{number} channel{'' if number == 1 else 's'}"


def _mm(values: tuple[float, float, float]) -> str:
    return f"({', '.join(f'{v:.2f}' for v in values)}) mm"


def _hu(window: tuple[float, float] | None) -> str:
    if window is None:
        return "nothing (MR)"
    return f"[{window[0]:g}, {window[1]:g}] HU"
