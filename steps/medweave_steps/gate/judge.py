"""The decision, from figures of the validation split only; the test split has no influence.

Rule: a candidate must stay within the tolerance of every metric. It is faster if the whole 95 % interval of its paired speed ratio
(float32 seconds over its own) is at least `min_speedup`, and not slower if the whole interval is at least 1 / `max_slowdown`.

1. The fastest of the faster candidates is accepted; of those whose intervals overlap with its interval, the smallest.
2. Without a faster one, the smallest that is smaller than the exported model and not slower is accepted. The exported model in
   another runtime is the same model: it must be faster.
3. Otherwise the exported model is accepted.

With a fixed choice, only the metrics of that candidate are judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from medweave_core.contracts.gate import (
    GateCandidate,
    GateClassTolerances,
    GateDecision,
    GateSpeed,
    GateTolerances,
)
from medweave_core.contracts.model import RUNTIME_TITLES, Precision, Runtime
from medweave_core.errors import UserInputError
from medweave_steps.tasks import task_named
from medweave_steps.tasks.difference_words import decimals_beside
from medweave_steps.tasks.judge import Judge

_REFUSED = "refused: "
_ONE_IN = 40
"""A bound of a 95 % interval leaves one in forty beyond it."""
Tolerances = GateClassTolerances | GateTolerances


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of one model in one runtime on the validation split; attributes as in `GateCandidate`.

    Attributes:
        num_bytes: size of the files that the runtime opens.
        seconds: per round, s; empty for a failure.
        cases: findings as `Task.judge_case` returns them.
    """

    name: str
    precision: Precision
    runtime: Runtime
    device: Literal["cpu", "cuda"]
    card_sha256: str
    num_bytes: int
    seconds: tuple[float, ...]
    cases: tuple[Any, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule of a decision about measurements.

    Attributes:
        judge: of the task.
        tolerances: as `Judge.tolerances` returns them.
        seed: of the intervals of the metrics.
        fixed_choice: the only candidate, as `name:runtime`; speed is then not judged.
    """

    judge: Judge
    tolerances: Any
    seed: int
    fixed_choice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision about measured candidates.

    Attributes:
        accepted: index of the accepted candidate; None if the exported model is accepted.
        reason: the decision in one line.
    """

    float32_speed: GateSpeed
    float32_validation: Any
    candidates: tuple[GateCandidate, ...]
    accepted: int | None
    reason: str


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median by order statistics; of fewer than six values, the smallest and the largest.

    It assumes no distribution, and one outlier among ten values moves no bound beyond the next value.
    Source: Conover 1999, Practical Nonparametric Statistics, section 3.2 (quantile interval, from the sign test).
    """
    ordered, number = sorted(values), len(values)
    # In integers, as numbers of the 2 ** number equally probable signs: of a thousand values they are too large for floats.
    most, signs, more = 2**number // _ONE_IN, 1, number
    place = 0
    while place < number // 2 and signs + more <= most:
        place, signs, more = place + 1, signs + more, more * (number - place - 1) // (place + 2)
    return ordered[place], ordered[number - 1 - place]


def speed_of(seconds: Sequence[float], base_seconds: Sequence[float], *, size: int, base_size: int) -> GateSpeed:
    """Return the speedup over pairs of rounds: median, quartiles and interval of the ratios; equal lists give 1.

    Args:
        seconds: of the candidate, in the first rounds.
        base_seconds: of float32, in all rounds.
    """
    ratios = np.asarray(base_seconds[: len(seconds)]) / np.asarray(seconds)
    first, middle, third = (float(q) for q in np.quantile(ratios, [0.25, 0.5, 0.75]))
    return GateSpeed(
        seconds_per_volume=float(np.median(seconds)),
        speedup=middle,
        speedup_quartiles=(first, third),
        pairs=len(ratios),
        model_bytes=size,
        size_ratio=size / base_size,
        interval=median_interval([float(ratio) for ratio in ratios]),
        seconds=tuple(seconds),
    )


def is_open(speed: GateSpeed, tolerances: Tolerances, *, is_same_model: bool) -> bool:
    """Return True while more rounds could change what the speed of a candidate means for the decision.

    Args:
        is_same_model: it is the exported model, which cannot gain in size.
    """
    low, high = _interval(speed)
    if low < tolerances.min_speedup <= high:
        return True
    return not is_same_model and speed.size_ratio < 1 and low < 1 / tolerances.max_slowdown <= high


def is_within(base: Measured, candidate: Measured, rule: Rule) -> bool:
    """Return True if every metric of a candidate stays within its tolerance."""
    comparison = rule.judge.compare(base.cases, candidate.cases, seed=rule.seed)
    return all(good for good, _ in rule.judge.judged(comparison, rule.tolerances))


def decide(base: Measured, candidates: Sequence[Measured], rule: Rule) -> Verdict:
    """Return the decision about candidates, with the reasons for each.

    Args:
        base: the exported model in the runtime of the reference.
    """
    judged = tuple(judge_candidate(base, candidate, rule) for candidate in candidates)
    accepted = choose(judged, rule.tolerances)
    return Verdict(
        float32_speed=speed_of(base.seconds, base.seconds, size=base.num_bytes, base_size=base.num_bytes),
        float32_validation=rule.judge.figures(base.cases),
        candidates=judged,
        accepted=None if accepted is None else judged.index(accepted),
        reason=_in_one_line(base, judged, accepted, rule),
    )


def judge_candidate(base: Measured, candidate: Measured, rule: Rule) -> GateCandidate:
    """Return whether a candidate gains in speed or size and stays within all tolerances, with the reasons."""
    found: dict[str, Any] = {
        "name": candidate.name,
        "precision": candidate.precision,
        "card_sha256": candidate.card_sha256,
        "runtime": candidate.runtime,
        "device": candidate.device,
        "failure": candidate.failure,
    }
    if candidate.failure:
        reasons = (f"{_REFUSED}{candidate.failure}",)
        return GateCandidate(is_accepted=False, reasons=reasons, speed=None, validation=None, **found)
    speed = speed_of(candidate.seconds, base.seconds, size=candidate.num_bytes, base_size=base.num_bytes)
    validation = rule.judge.compare(base.cases, candidate.cases, seed=rule.seed)
    is_same_model = candidate.card_sha256 == base.card_sha256
    gains, refusals = _gains(speed, rule, is_same_model=is_same_model)
    for good, text in rule.judge.judged(validation, rule.tolerances):
        (gains if good else refusals).append(text)
    return GateCandidate(
        is_accepted=not refusals,
        reasons=(*(_REFUSED + text for text in refusals), *gains),
        speed=speed,
        validation=validation,
        **found,
    )


def choose(candidates: Sequence[GateCandidate], tolerances: Tolerances) -> GateCandidate | None:
    """Return the accepted candidate by the rule above; None where none was accepted. Equals are taken in their order."""
    speeds = [(candidate, candidate.speed) for candidate in candidates if candidate.is_accepted and candidate.speed]
    faster = [one for one in speeds if _interval(one[1])[0] >= tolerances.min_speedup]
    if faster:
        fastest = max(faster, key=lambda one: one[1].speedup)[1]
        speeds = [one for one in faster if _interval(one[1])[1] >= _interval(fastest)[0]]
    return min(speeds, key=lambda one: one[1].model_bytes)[0] if speeds else None


def recompute(decision: GateDecision) -> GateDecision:
    """Return a decision again from the measurements that it records; it equals the recorded one.

    Raises:
        UserInputError: the decision was written by an earlier version, without the seconds of each round.
    """
    if not decision.float32_speed.seconds:
        raise UserInputError(
            "the gate decision cannot be recomputed.",
            seen="no seconds of each round in gate_decision.json",
            expected="a decision of this version of medweave",
            do="run gate again",
        )
    rule = Rule(
        judge=task_named(decision.task_name).judge(),
        tolerances=decision.tolerances,
        seed=decision.bootstrap_seed,
        fixed_choice=decision.fixed_choice,
    )
    base = Measured(
        name="float32",
        precision="float32",
        runtime=decision.float32_runtime,
        device=decision.float32_device,
        card_sha256=decision.exported_sha256,
        num_bytes=decision.float32_speed.model_bytes,
        seconds=decision.float32_speed.seconds,
        cases=decision.float32_validation.cases,
    )
    verdict = decide(base, [_measured(candidate) for candidate in decision.candidates], rule)
    tests = [candidate.test for candidate in decision.candidates]
    candidates = [dataclasses.replace(one, test=test) for one, test in zip(verdict.candidates, tests, strict=True)]
    chosen: Any = base if verdict.accepted is None else candidates[verdict.accepted]
    return dataclasses.replace(
        decision,
        precision=chosen.precision,
        chosen=chosen.name,
        runtime=chosen.runtime,
        reason=verdict.reason,
        float32_speed=verdict.float32_speed,
        float32_validation=verdict.float32_validation,
        candidates=tuple(candidates),
    )


def _measured(candidate: GateCandidate) -> Measured:
    speed, validation = candidate.speed, candidate.validation
    return Measured(
        name=candidate.name,
        precision=candidate.precision,
        runtime=candidate.runtime,
        device=candidate.device,
        card_sha256=candidate.card_sha256,
        num_bytes=speed.model_bytes if speed else 0,
        seconds=speed.seconds if speed else (),
        cases=validation.figures.cases if validation else (),
        failure=candidate.failure,
    )


def _interval(speed: GateSpeed) -> tuple[float, float]:
    return speed.interval or (speed.speedup, speed.speedup)


def _gains(speed: GateSpeed, rule: Rule, *, is_same_model: bool) -> tuple[list[str], list[str]]:
    """Return what a candidate gains, and why its speed and size refuse it."""
    limits, low = rule.tolerances, _interval(speed)[0]
    size = f"{speed.size_ratio:.2f} of the float32 size on disk"
    if rule.fixed_choice:
        return [f"fixed by --fixed-choice, speed not judged: {_timed(speed)}", size], []
    if low >= limits.min_speedup:
        return [f"{speed.speedup:.2f} times as fast as float32 ({_pairs(speed, limits.min_speedup)})", size], []
    slow = f"{1 / speed.speedup:.2f} times the float32 time ({_pairs(speed, limits.min_speedup)})"
    faster = f"the whole interval of the speed must be at least {limits.min_speedup:g}"
    if is_same_model:
        return [], [f"the same model, not faster: {slow}, {faster}"]
    if speed.size_ratio >= 1:
        return [], [f"neither faster nor smaller: {slow}, {faster}, {size}"]
    if low < 1 / limits.max_slowdown:
        slow = f"{1 / speed.speedup:.2f} times the float32 time ({_pairs(speed, 1 / limits.max_slowdown)})"
        whole = f"the whole interval of the speed must be at least 1/{limits.max_slowdown:g}"
        return [], [f"smaller, but slower than allowed: {slow}, {whole}"]
    return [f"smaller: {size}", f"not faster: {slow}"], []


def _timed(speed: GateSpeed) -> str:
    return f"{speed.speedup:.2f} times as fast as float32 ({_pairs(speed, 1.0)})"


def _pairs(speed: GateSpeed, bound: float) -> str:
    low, high = (f"{one:.{decimals_beside(one, bound, 2)}f}" for one in _interval(speed))
    return f"speed in {speed.pairs} pairs, 95 % interval {low} to {high}"


def _in_one_line(base: Measured, judged: Sequence[GateCandidate], accepted: GateCandidate | None, rule: Rule) -> str:
    if accepted is not None:
        return f"{_title(accepted)} accepted: {'; '.join(accepted.reasons)}."
    kept = f"{_title(base)} kept"
    if not judged:
        return f"{kept}: {'fixed by --fixed-choice' if rule.fixed_choice else 'there is no candidate'}."
    refused = " ".join(
        f"{_title(candidate)} {'; '.join(r for r in candidate.reasons if r.startswith('refused'))}."
        for candidate in judged
    )
    return f"{kept}. {refused}"


def _title(one: GateCandidate | Measured) -> str:
    return f"{one.name} ({RUNTIME_TITLES[one.runtime]})"
