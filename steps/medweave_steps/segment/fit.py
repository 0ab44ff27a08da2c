"""The check that volumes match the input contract of a model's card, before the model is opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.labels import check_regions, shown
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import VolumeInfo, modality_of
from medweave_core.errors import UserInputError
from medweave_steps.inference.head import OutputHead
from medweave_steps.io.geometry import ras_axes
from medweave_steps.io.model.folder import holds_window
from medweave_steps.networks import multiples_of, multiples_text

_SAME_MM = 1e-4


def check_fits(card: ModelCard, cohort: PreparedCohort, infos: Sequence[VolumeInfo]) -> None:
    """Compare the model's input contract with every case of a batch, before any work is done.

    Raises:
        UserInputError: one does not fit, and the first such case and what differs are named; the card's labels, regions and filters
            contradict each other.
    """
    _check_outputs(card)
    wanted = card.input.channel_names
    if wanted != cohort.channels or card.input.channels != len(wanted):
        raise _misfit(
            card,
            "this batch",
            f"{_counted(len(cohort.channels))}: {', '.join(cohort.channels)} (cohort.json)",
            f"{_counted(card.input.channels)}: {', '.join(wanted)} (model_card.json, input)",
        )
    sides, multiples = card.input.patch_shape, multiples_of(card)
    if any(side < 1 or side % multiple for side, multiple in zip(sides, multiples, strict=True)):
        raise _misfit(
            card,
            "its own architecture",
            f"patch shape {sides} (model_card.json, input)",
            f"sizes that are multiples of {multiples_text(multiples)}",
        )
    for info in infos:
        for seen, expected, file, is_same in _compared(card, cohort, info):
            if not is_same:
                raise _misfit(card, info.case_id, f"{seen} ({file})", f"{expected} (model_card.json, input)")


def _check_outputs(card: ModelCard) -> None:
    labels, head = card.foreground_labels, OutputHead.of(card)
    head.filters_of(card.postprocessing)
    if card.output.regions:
        check_regions(card.output.regions, labels)
    values = [label.value for label in card.labels]
    is_ambiguous = head.is_binary and len(labels) > 1 and not card.output.regions
    if values == sorted(set(values)) and not is_ambiguous:
        return
    raise UserInputError(
        f"the labels of the model '{card.name}' do not match its output.",
        seen=f"labels {shown(labels)} and an output of one logit" if is_ambiguous else f"labels {shown(card.labels)}",
        expected="one label for one logit, or an output with a channel for each label or region"
        if is_ambiguous
        else "different values, in ascending order",
        do="train the model again; do not edit model_card.json by hand",
    )


def _compared(card: ModelCard, cohort: PreparedCohort, info: VolumeInfo) -> Iterable[tuple[str, str, str, bool]]:
    wanted = card.input
    modality = modality_of(cohort.channels)
    yield f'modality "{modality}"', f'modality "{wanted.modality}"', "cohort.json", modality == wanted.modality
    spacing = info.grid.spacing_mm
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


def _misfit(card: ModelCard, case: str, seen: str, expected: str) -> UserInputError:
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
