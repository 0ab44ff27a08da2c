"""Validation: sliding windows over whole cases, lesions counted, postprocessing chosen.

All of it happens on the network's grid, because a training set holds labels on no other. Suffix legend: I J K voxel axes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import distinct_names, slugs
from medweave_core.contracts.model import Postprocessing
from medweave_core.contracts.volume import Triple, Triple_mm
from medweave_steps.inference.intensity import air_of, scaled
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.metrics.components import connected_components
from medweave_steps.metrics.lesions import longest_diameters_mm
from medweave_steps.metrics.means import mean_of
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.tasks.segmentation.targets import BoolArray, Targets
from medweave_steps.training.data.batch import FloatArray
from medweave_steps.training.loop.validator import Figures, Validator

THRESHOLDS = (0.3, 0.4, 0.5)
MIN_PEAKS = (0.0, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998)
MIN_VOLUMES_MM3 = (0.0, 10.0, 20.0, 30.0, 45.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The counts of voxels and lesions of one case under one choice of postprocessing.

    Attributes:
        diameters_mm: longest diameter of each lesion of the label.
        hit: whether it was found.
    """

    num_common: int
    num_predicted: int
    num_reference: int
    num_false_positives: int
    diameters_mm: tuple[float, ...]
    hit: tuple[bool, ...]

    @property
    def dice(self) -> float:
        """Dice of the case; NaN where mask and label are both empty."""
        total = self.num_predicted + self.num_reference
        return 2 * self.num_common / total if total else math.nan


def predict_probability(
    predictor: Callable[[Any], Any],
    volume_CIJK: npt.NDArray[np.floating],
    *,
    window_hu: tuple[float, float] | None,
    window_shape: Triple,
    overlap: float,
    device: Any,
    scaled_range: tuple[float, float] = (0.0, 1.0),
    is_softmax: bool = False,
) -> FloatArray:
    """Return the probability of each channel in each voxel, by MONAI's Gaussian-weighted sliding window, as `segment` computes it.

    Args:
        predictor: from scaled windows [1, C, I, J, K] to float32 logits of the network's channels.
        is_softmax: the channels exclude each other; else each has its own logistic function.
    Returns:
        float32 [C, I, J, K].
    """
    torch = require("torch", extra="train")
    inferers = require("monai.inferers", extra="train")
    image = torch.from_numpy(np.array(scaled(volume_CIJK, window_hu, scaled_range)))[None].to(device)
    with torch.inference_mode():
        logits = inferers.sliding_window_inference(
            image,
            window_shape,
            1,
            predictor,
            overlap=overlap,
            mode="gaussian",
            sigma_scale=0.125,
            padding_mode="constant",
            cval=air_of(window_hu, scaled_range),
        )
        activation = logits.softmax(1) if is_softmax else torch.sigmoid(logits)
        probability: FloatArray = activation[0].cpu().numpy()
    return probability


def tallies(
    probability_IJK: FloatArray,
    label_IJK: npt.NDArray[Any],
    spacing_mm: Triple_mm,
    *,
    choices: Sequence[Postprocessing],
    mask_IJK: BoolArray | None = None,
    counted_IJK: BoolArray | None = None,
) -> list[Tally]:
    """Count for each choice of threshold, lowest peak and smallest volume, one labeling per threshold.

    A lesion is a 26-connected component of the label, hit if a component of the mask that passes the filters overlaps it. Such a
    component that overlaps no lesion is a false positive.

    Args:
        mask_IJK: predicted voxels, with softmax; None where the thresholds decide.
        counted_IJK: voxels with annotation, to which the prediction is restricted; None for all.
    """
    lesions = connected_components(np.asarray(label_IJK) > 0)
    diameters = tuple(longest_diameters_mm(lesions, spacing_mm=spacing_mm, plane_axis=2))
    lesion_of = np.full(probability_IJK.size, -1, np.int32)
    lesion_of[lesions.voxels] = lesions.labels
    found: dict[float, Any] = {}
    peaks: dict[float, FloatArray] = {}
    results = []
    for choice in choices:
        if choice.threshold not in found:
            mask = probability_IJK >= np.float32(choice.threshold) if mask_IJK is None else mask_IJK
            components = connected_components(mask if counted_IJK is None else mask & counted_IJK)
            found[choice.threshold] = components
            peaks[choice.threshold] = np.zeros(components.num, np.float32)
            np.maximum.at(peaks[choice.threshold], components.labels, probability_IJK.reshape(-1)[components.voxels])
        components = found[choice.threshold]
        volume_mm3 = components.num_voxels() * float(np.prod(spacing_mm))
        passes = volume_mm3 >= choice.min_volume_mm3 * (1 - 1e-9)
        passes &= peaks[choice.threshold] >= np.float32(choice.min_peak)
        is_predicted = passes[components.labels]
        under = lesion_of[components.voxels]
        common = is_predicted & (under >= 0)
        hit = np.zeros(lesions.num, np.bool_)
        hit[under[common]] = True
        is_true = np.zeros(components.num, np.bool_)
        is_true[components.labels[common]] = True
        results.append(
            Tally(
                num_common=int(common.sum()),
                num_predicted=int(is_predicted.sum()),
                num_reference=len(lesions.voxels),
                num_false_positives=int((passes & ~is_true).sum()),
                diameters_mm=diameters,
                hit=tuple(bool(x) for x in hit),
            )
        )
    return results


def summary(cases: Sequence[Tally]) -> dict[str, float | None]:
    """Return mean Dice, lesion sensitivity (all, and from 6 and 10 mm) and false positives per scan; None for undefined ones."""
    dices = [tally.dice for tally in cases if not math.isnan(tally.dice)]
    figures: dict[str, float | None] = {"dice": float(np.mean(dices)) if dices else None}
    for name, smallest in (("sensitivity", 0.0), ("sensitivity_6mm", 6.0), ("sensitivity_10mm", 10.0)):
        pairs = [zip(tally.diameters_mm, tally.hit, strict=True) for tally in cases]
        hits = [hit for diameter, hit in itertools.chain(*pairs) if diameter >= smallest]
        figures[name] = float(np.mean(hits)) if hits else None
    figures["false_positives_per_scan"] = float(np.mean([t.num_false_positives for t in cases])) if cases else None
    return {name: None if value is None else round(value, 4) for name, value in figures.items()}


def score(figures: Mapping[str, float | None]) -> float:
    """Return mean Dice, 0 where undefined: weights with a larger score are better.

    Sensitivity must not enter before a threshold is chosen: weights that see lesions everywhere would win.
    """
    return figures["dice"] or 0.0


def all_choices(overlap: float, *, thresholds: Sequence[float] = THRESHOLDS) -> list[Postprocessing]:
    """Return the thresholds, peaks and size filters that are tried."""
    return [
        Postprocessing(threshold=threshold, min_peak=peak, min_volume_mm3=volume, overlap=overlap)
        for threshold in thresholds
        for peak in MIN_PEAKS
        for volume in MIN_VOLUMES_MM3
    ]


def choose_postprocessing(
    choices: Sequence[Postprocessing], per_case: Sequence[Sequence[Tally]], *, max_false_positives: float
) -> tuple[Postprocessing, dict[str, float | None]]:
    """Choose the threshold of the outline first, then the filters of lesions.

    The threshold is the one with the best Dice while nothing is filtered out: false positives must not pay with outlines. Among
    the filters at that threshold, the one with the best mean of Dice and sensitivity that keeps false positives below the limit.

    Args:
        choices: the tried postprocessings; some without filters.
        per_case: for each case, the tallies in the order of the choices.
        max_false_positives: per scan; where no choice stays below, the one with the fewest is taken.
    """
    figures = [summary([case[number] for case in per_case]) for number in range(len(choices))]

    def rank(number: int) -> tuple[float, ...]:
        false_positives = figures[number]["false_positives_per_scan"] or 0.0
        excess = max(false_positives - max_false_positives, 0.0)
        quality = ((figures[number]["dice"] or 0.0) + (figures[number]["sensitivity"] or 0.0)) / 2
        # Where that is equal: the weaker filters.
        return (-excess, quality, -choices[number].min_volume_mm3, -choices[number].min_peak)

    def outline(number: int) -> tuple[float, ...]:
        # Where Dice is equal: the threshold nearest to one half.
        return (figures[number]["dice"] or 0.0, -abs(choices[number].threshold - 0.5))

    numbers = range(len(choices))
    plain = [number for number in numbers if choices[number].min_peak == choices[number].min_volume_mm3 == 0]
    threshold = choices[max(plain, key=outline)].threshold
    best = max((number for number in numbers if choices[number].threshold == threshold), key=rank)
    return choices[best], figures[best]


def plain(overlap: float) -> Postprocessing:
    """Return the postprocessing under which weights are compared: a threshold of one half without a size filter."""
    return dataclasses.replace(Postprocessing(), overlap=overlap)


CaseTally = tuple[Tally, ...]
"""The tally of each output of the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentationValidator(Validator):
    """Sliding windows over the validation cases.

    With several outputs each has its own tallies, threshold and filters, and the figures of a case are the means of the outputs'.

    Attributes:
        cases: the validation cases, labeled.
        targets: outputs of the network.
        max_false_positives: per scan and output, for the choice of the filters.
    """

    cases: Sequence[CaseFolder]
    targets: Targets
    spacing_mm: Triple_mm
    window_hu: tuple[float, float] | None
    window_shape: Triple
    overlap: float
    max_false_positives: float
    device: Any
    scaled_range: tuple[float, float] = (0.0, 1.0)

    @property
    def plain(self) -> Postprocessing:
        """Return a threshold of one half without filters."""
        return plain(self.overlap)

    @property
    def choices(self) -> list[Postprocessing]:
        """Return the thresholds, peaks and size filters that are tried for each output; softmax has no threshold."""
        return all_choices(self.overlap, thresholds=(0.5,) if self.targets.is_softmax else THRESHOLDS)

    def tallies(
        self,
        predictor: Callable[[Any], Any],
        choices: Sequence[Postprocessing],
        *,
        num_cases: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> list[list[CaseTally]]:
        """Return per case, in order, the tallies of each choice."""
        return [self._tallies_of(case, predictor, choices) for case in self.cases[:num_cases][rank::world_size]]

    def _tallies_of(
        self, case: CaseFolder, predictor: Callable[[Any], Any], choices: Sequence[Postprocessing]
    ) -> list[CaseTally]:
        targets, label = self.targets, case.label_IJK()
        probability = predict_probability(
            predictor,
            case.volume_CIJK(),
            window_hu=self.window_hu,
            window_shape=self.window_shape,
            overlap=self.overlap,
            device=self.device,
            scaled_range=self.scaled_range,
            is_softmax=targets.is_softmax,
        )
        counted, largest = targets.counted(label), probability.argmax(axis=0) if targets.is_softmax else None
        of_outputs = []
        for place, output in enumerate(targets.outputs):
            channel = targets.head.channel_of(place)
            of_outputs.append(
                tallies(
                    probability[channel],
                    targets.reference(label, output),
                    self.spacing_mm,
                    choices=choices,
                    mask_IJK=None if largest is None else largest == channel,
                    counted_IJK=counted,
                )
            )
        return list(zip(*of_outputs, strict=True))

    def figures(self, tallies: Sequence[CaseTally]) -> Figures:
        """Return the summary of all cases; with several outputs the means, then the figures of each output."""
        return self._joined([summary([case[place] for case in tallies]) for place in range(len(self.targets.outputs))])

    def score(self, figures: Mapping[str, float | None]) -> float:
        """Return the mean Dice."""
        return score(figures)

    def progress(self, figures: Mapping[str, float | None]) -> tuple[str, dict[str, float]]:
        """Return Dice and sensitivity."""
        dice, sensitivity = figures["dice"] or 0.0, figures["sensitivity"] or 0.0
        text = f"validation Dice {dice:.2f}, sensitivity {sensitivity:.2f}"
        return text, {"dice": dice, "sensitivity": sensitivity}

    def choose(self, context: StepContext, per_case: Sequence[Sequence[CaseTally]]) -> tuple[Postprocessing, Figures]:
        """Choose threshold and filters of each output and add the cases' figures to the report."""
        choices, outputs = self.choices, self.targets.outputs
        chosen: list[Postprocessing] = []
        figures: list[Figures] = []
        for place, output in enumerate(outputs):
            of_output = [[tally[place] for tally in case] for case in per_case]
            best, of_best = choose_postprocessing(choices, of_output, max_false_positives=self.max_false_positives)
            chosen.append(best)
            figures.append(of_best)
            self._report_false_positives(context, of_best, output.name if len(outputs) > 1 else "")
        for case, of_case in zip(self.cases, per_case, strict=True):
            tallies = [of_case[choices.index(best)][place] for place, best in enumerate(chosen)]
            self._add_case(context, case.case.case_id, tallies)
        return self._postprocessing(chosen), self._joined(figures)

    def _postprocessing(self, chosen: Sequence[Postprocessing]) -> Postprocessing:
        if len(chosen) == 1:
            return chosen[0]
        return dataclasses.replace(self.plain, by_output=tuple(best.filters[0] for best in chosen))

    def _joined(self, figures: Sequence[Figures]) -> Figures:
        if len(figures) == 1:
            return figures[0]
        means = {name: mean_of(own[name] for own in figures) for name in figures[0]}
        named = zip(slugs(distinct_names(self.targets.outputs)), figures, strict=True)
        return means | {f"{name}_{slug}": value for slug, own in named for name, value in own.items()}

    def _report_false_positives(self, context: StepContext, figures: Figures, output: str) -> None:
        limit, false_positives = self.max_false_positives, figures["false_positives_per_scan"] or 0.0
        if false_positives > limit:
            of_output = f" of {output}" if output else ""
            context.notice(
                f"no combination of threshold, peak probability and volume keeps false positives{of_output} at {limit:g} per "
                f"validation scan; the best combination has {false_positives:.2f}."
            )

    def _add_case(self, context: StepContext, case_id: str, tallies: Sequence[Tally]) -> None:
        dices = [None if tally.dice != tally.dice else round(tally.dice, 4) for tally in tallies]
        named = zip(slugs(distinct_names(self.targets.outputs)), dices, strict=True) if len(tallies) > 1 else ()
        context.add_case(
            case_id,
            split="validation",
            dice=dices[0] if len(dices) == 1 else mean_of(dices),
            lesions=sum(len(tally.hit) for tally in tallies),
            lesions_found=sum(sum(tally.hit) for tally in tallies),
            false_positives=sum(tally.num_false_positives for tally in tallies),
            **{f"dice_{slug}": dice for slug, dice in named},
        )
