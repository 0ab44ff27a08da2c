"""The decision, from figures of the validation split only; the test split has no influence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.gate import (
    GateCandidate,
    GateCase,
    GateComparison,
    GateDifference,
    GateLabelCase,
    GateLabelComparison,
    GateSpeed,
    GateTolerances,
)
from medweave_core.contracts.model import Precision
from medweave_steps.gate.measure import cases_by_label, figures
from medweave_steps.gate.words import decimals_beside, decimals_for, signed
from medweave_steps.metrics.bootstrap import confidence_interval, mean

Rows = npt.NDArray[np.float64]
_SLACK = 1e-12
_REFUSED = "refused: "


def compare(base: Sequence[GateCase], candidate: Sequence[GateCase], *, seed: int) -> GateComparison:
    """Return the paired differences, candidate minus float32, with confidence intervals over patients.

    Args:
        base, candidate: the same cases in the same order.
        seed: seed of the bootstrap.
    """
    assert [case.case_id for case in base] == [case.case_id for case in candidate]
    patients = [case.patient_key for case in base]
    labels, base_labels = cases_by_label(candidate), cases_by_label(base)
    pooled = _differences(base, candidate, patients, seed=seed)
    return GateComparison(
        figures=figures(candidate),
        dice=pooled.dice,
        lesion_sensitivity=pooled.lesion_sensitivity,
        false_positives_per_scan=pooled.false_positives_per_scan,
        by_label={name: _differences(base_labels[name], own, patients, seed=seed) for name, own in labels.items()},
    )


def _differences(
    base: Sequence[GateCase | GateLabelCase],
    candidate: Sequence[GateCase | GateLabelCase],
    patients: Sequence[str],
    *,
    seed: int,
) -> GateLabelComparison:
    pairs = list(zip(base, candidate, strict=True))

    def difference(values: Sequence[object], statistic: Callable[[Rows], float]) -> GateDifference:
        rows = np.asarray(values, dtype=np.float64)
        low, high = confidence_interval(rows, statistic, seed=seed, patients=patients)
        return GateDifference(value=_number(statistic(rows)), lower=_number(low), upper=_number(high))

    return GateLabelComparison(
        dice=difference([c.dice - b.dice for b, c in pairs], mean),
        lesion_sensitivity=difference([(c.lesions_hit - b.lesions_hit, b.lesions) for b, c in pairs], _pooled),
        false_positives_per_scan=difference([c.false_positives - b.false_positives for b, c in pairs], mean),
    )


def speed_of(seconds: Sequence[float], base_seconds: Sequence[float], *, size: int, base_size: int) -> GateSpeed:
    """Return the speedup over pairs of rounds: median and quartiles of the ratios; equal lists give 1."""
    ratios = np.asarray(base_seconds) / np.asarray(seconds)
    first, middle, third = (float(q) for q in np.quantile(ratios, [0.25, 0.5, 0.75]))
    return GateSpeed(
        seconds_per_volume=float(np.median(seconds)),
        speedup=middle,
        speedup_quartiles=(first, third),
        pairs=len(ratios),
        model_bytes=size,
        size_ratio=size / base_size,
    )


def judge(
    precision: Precision, card_sha256: str, speed: GateSpeed, validation: GateComparison, tolerances: GateTolerances
) -> GateCandidate:
    """Return the decision about a candidate, with reasons: it must gain in speed or size and stay within all tolerances.

    Of several labels each one must stay within them, and its reasons name it.
    """
    gains, refusals = _gains(speed, tolerances)
    for good, text in _metrics(validation, tolerances):
        (gains if good else refusals).append(text)
    return GateCandidate(
        precision=precision,
        card_sha256=card_sha256,
        is_accepted=not refusals,
        reasons=(*(_REFUSED + text for text in refusals), *gains),
        speed=speed,
        validation=validation,
    )


def failed(precision: Precision, card_sha256: str, failure: str) -> GateCandidate:
    """Return the refusal of a candidate whose network gave values that are not finite."""
    return GateCandidate(
        precision=precision,
        card_sha256=card_sha256,
        is_accepted=False,
        reasons=(f"{_REFUSED}inference failed on the validation split: {failure}",),
        speed=None,
        validation=None,
    )


def choose(candidates: Sequence[GateCandidate]) -> GateCandidate | None:
    """Return the fastest accepted candidate, the smaller one of equals; None where none was accepted."""
    accepted = [candidate for candidate in candidates if candidate.is_accepted]
    return max(accepted, key=lambda c: (c.speed.speedup, -c.speed.model_bytes), default=None)  # type: ignore[union-attr]


def _gains(speed: GateSpeed, tolerances: GateTolerances) -> tuple[list[str], list[str]]:
    size = f"{speed.size_ratio:.2f} of the float32 size on disk"
    timed = f"(median of {speed.pairs} pairs, quartiles {speed.speedup_quartiles[0]:.2f} to {speed.speedup_quartiles[1]:.2f})"
    if speed.speedup >= tolerances.min_speedup:
        return [f"{speed.speedup:.2f} times as fast as float32 {timed}", size], []
    slow = f"{1 / speed.speedup:.2f} times the float32 time {timed}"
    if speed.size_ratio >= 1:
        return [], [f"neither faster nor smaller: {slow}, {size}"]
    if 1 / speed.speedup > tolerances.max_slowdown:
        return [], [f"smaller, but slower than allowed: {slow}, at most {tolerances.max_slowdown:g} times"]
    return [f"smaller: {size}", f"not faster: {slow}"], []


def _metrics(validation: GateComparison, tolerances: GateTolerances) -> list[tuple[bool, str]]:
    parts: Mapping[str, GateComparison | GateLabelComparison] = validation.by_label or {"": validation}
    judged: list[tuple[bool, str]] = []
    for name, part in parts.items():
        figures_of_label = (
            _judged_dice(part.dice, tolerances.dice),
            _judged_sensitivity(part.lesion_sensitivity.value, tolerances.sensitivity),
            _judged_false_positives(part.false_positives_per_scan.value, tolerances.false_positives_per_scan),
        )
        of_label = f"{name}: " if name else ""
        judged += [(good, of_label + text) for good, text in figures_of_label]
    return judged


def _judged_dice(dice: GateDifference, tolerance: float) -> tuple[bool, str]:
    if dice.value is None or dice.lower is None or dice.upper is None:
        return False, "Dice cannot be judged: the validation split has fewer than two patients"
    decimals = decimals_beside(dice.lower, -tolerance, decimals_for((dice.value, dice.lower, dice.upper)))
    value, low, high = (signed(figure, decimals) for figure in (dice.value, dice.lower, dice.upper))
    return _within(
        dice.lower > -tolerance, f"Dice {value} (95 % interval {low} to {high})", f"must stay above −{tolerance:g}"
    )


def _judged_sensitivity(change: float | None, tolerance: float) -> tuple[bool, str]:
    if change is None:
        return False, "sensitivity cannot be judged: the validation split has no lesion"
    sentence = f"lesion sensitivity {_change(change, -tolerance)}"
    return _within(_at_most(-change, tolerance), sentence, f"may fall by {tolerance:g}")


def _judged_false_positives(change: float | None, tolerance: float) -> tuple[bool, str]:
    assert change is not None
    sentence = f"false positives per scan {_change(change, tolerance)}"
    return _within(_at_most(change, tolerance), sentence, f"may rise by {tolerance:g}")


def _change(change: float, bound: float) -> str:
    # Within the slack of _at_most a change counts as the bound itself, and reads as it.
    change = bound if abs(change - bound) <= _SLACK else change
    return signed(change, decimals_beside(change, bound, decimals_for((change,))))


def _within(good: bool, sentence: str, rule: str) -> tuple[bool, str]:
    return good, sentence if good else f"{sentence}, {rule}"


def _at_most(value: float, bound: float) -> bool:
    # 0.1 more is within a tolerance of 0.1, whatever the last bit of the mean says.
    return value <= bound + _SLACK


def _pooled(rows: Rows) -> float:
    lesions = rows[:, 1].sum()
    return float(rows[:, 0].sum() / lesions) if lesions else math.nan


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
