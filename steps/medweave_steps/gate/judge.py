"""The decision, from figures of the validation split only; the test split has no influence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from medweave_core.contracts.gate import GateCandidate, GateClassTolerances, GateSpeed, GateTolerances
from medweave_core.contracts.model import Precision
from medweave_steps.tasks.judge import Judge

_REFUSED = "refused: "


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


def decide(
    judge: Judge, precision: Precision, card_sha256: str, speed: GateSpeed, validation: Any, tolerances: Any
) -> GateCandidate:
    """Return the decision about a candidate, with reasons: it must gain in speed or size and stay within all tolerances.

    Args:
        judge: of the task.
        validation: as `Judge.compare` returns it.
        tolerances: as `Judge.tolerances` returns it.
    """
    gains, refusals = _gains(speed, tolerances)
    for good, text in judge.judged(validation, tolerances):
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


def _gains(speed: GateSpeed, tolerances: GateClassTolerances | GateTolerances) -> tuple[list[str], list[str]]:
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
