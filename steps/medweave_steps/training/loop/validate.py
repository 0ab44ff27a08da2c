"""Validation: sliding windows over whole cases, lesions counted, postprocessing chosen.

All of it happens on the network's grid, because a training set holds labels on no other. Suffix legend: I J K voxel axes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import Postprocessing
from medweave_core.contracts.volume import Triple, Triple_mm
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder
from medweave_steps.metrics.components import connected_components
from medweave_steps.metrics.lesions import longest_diameters_mm
from medweave_steps.runtime.imports import require
from medweave_steps.training.data.patches import FloatArray, scaled

T = TypeVar("T")

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
) -> FloatArray:
    """Return the probability of a lesion in each voxel, by MONAI's Gaussian-weighted sliding window, as `segment` computes it.

    Args:
        predictor: from scaled windows [1, C, I, J, K] to float32 logits [1, 1, I, J, K].
    Returns:
        float32 [I, J, K].
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
            cval=scaled_range[0] if window_hu else 0.0,
        )
        probability: FloatArray = torch.sigmoid(logits)[0, 0].cpu().numpy()
    return probability


def tallies(
    probability_IJK: FloatArray,
    label_IJK: npt.NDArray[np.uint8],
    spacing_mm: Triple_mm,
    *,
    choices: Sequence[Postprocessing],
) -> list[Tally]:
    """Count for each choice of threshold, lowest peak and smallest volume, one labeling per threshold.

    A lesion is a 26-connected component of the label, hit if a component of the mask that passes the filters overlaps it. Such a
    component that overlaps no lesion is a false positive.
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
            components = connected_components(probability_IJK >= np.float32(choice.threshold))
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


def all_choices(overlap: float) -> list[Postprocessing]:
    """Return the thresholds, peaks and size filters that are tried."""
    return [
        Postprocessing(threshold=threshold, min_peak=peak, min_volume_mm3=volume, overlap=overlap)
        for threshold in THRESHOLDS
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """The validation of a network on a set of cases.

    Attributes:
        cases: the validation cases, labeled.
    """

    cases: Sequence[CaseFolder]
    spacing_mm: Triple_mm
    window_hu: tuple[float, float] | None
    window_shape: Triple
    overlap: float
    device: Any
    scaled_range: tuple[float, float] = (0.0, 1.0)

    def tallies(
        self,
        predictor: Callable[[Any], Any],
        choices: Sequence[Postprocessing],
        *,
        num_cases: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> list[list[Tally]]:
        """Return per case, in order, the tallies of each choice.

        Args:
            num_cases: only the first ones; None for all.
            rank, world_size: only this rank's share, every `world_size`-th case; `interleaved` joins the shares.
        """
        results = []
        for case in self.cases[:num_cases][rank::world_size]:
            volume = case.volume_CIJK()
            probability = predict_probability(
                predictor,
                volume,
                window_hu=self.window_hu,
                window_shape=self.window_shape,
                overlap=self.overlap,
                device=self.device,
                scaled_range=self.scaled_range,
            )
            results.append(tallies(probability, case.label_IJK(), self.spacing_mm, choices=choices))
        return results


def open_validator(
    prepared: PreparedFolder, validation: Sequence[CaseFolder], *, window_shape: Triple, overlap: float, device: Any
) -> Validator:
    """Return the validator of a training set: sliding windows over its validation cases."""
    return Validator(
        cases=validation,
        spacing_mm=prepared.cohort.spacing_mm,
        window_hu=prepared.cohort.window_hu,
        scaled_range=prepared.scaled_range,
        window_shape=window_shape,
        overlap=overlap,
        device=device,
    )


def plain(overlap: float) -> Postprocessing:
    """Return the postprocessing under which weights are compared: a threshold of one half without a size filter."""
    return dataclasses.replace(Postprocessing(), overlap=overlap)


def interleaved(shares: Sequence[Sequence[T]]) -> list[T]:
    """Return the cases' results in order, from those of all ranks."""
    total = sum(len(share) for share in shares)
    return [shares[place % len(shares)][place // len(shares)] for place in range(total)]
