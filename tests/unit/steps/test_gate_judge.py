"""The gate's rule on figures made by hand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_core.contracts.gate import GateCandidate, GateCase, GateSpeed, GateTolerances
from medweave_steps.gate.judge import (
    Measured,
    Rule,
    choose,
    decide,
    is_open,
    judge_candidate,
    median_interval,
    speed_of,
)
from medweave_steps.tasks.segmentation.gate_judge import SegmentationJudge

JUDGE = SegmentationJudge()

TOLERANCES = GateTolerances(
    dice=0.01, sensitivity=0.02, false_positives_per_scan=0.1, min_speedup=1.1, max_slowdown=1.1
)


def cases(
    dice: Sequence[float], hits: Sequence[int], false_positives: Sequence[int], *, lesions: int = 10, patients: str = ""
) -> list[GateCase]:
    """One case per place; every case has the same number of lesions, and by default its own patient."""
    return [
        GateCase(
            case_id=f"case-{i}", patient_key=patients[i : i + 1] or str(i), dice=d, lesions=lesions, lesions_hit=h,
            false_positives=f,
        )
        for i, (d, h, f) in enumerate(zip(dice, hits, false_positives, strict=True))
    ]  # fmt: skip


BASE = cases([0.9] * 10, [9] * 10, [0] * 10)


def measured(
    own: list[GateCase], seconds: Sequence[float] = (1.0,) * 7, *, size: int = 100, **changes: Any
) -> Measured:
    """Return what a model of 100 bytes has in seven rounds of a second."""
    values: dict[str, Any] = {
        "name": "int8", "precision": "int8", "runtime": "openvino", "device": "cpu", "card_sha256": "1" * 64,
        "num_bytes": size, "seconds": tuple(seconds), "cases": tuple(own),
    }  # fmt: skip
    return Measured(**values | changes)


def rule(**changes: Any) -> Rule:
    values: dict[str, Any] = {"judge": JUDGE, "tolerances": TOLERANCES, "seed": 0}
    return Rule(**values | changes)


def judged(
    candidate: list[GateCase], *, base: list[GateCase] = BASE, speedup: float = 2.0, size: int = 50, **changes: Any
) -> GateCandidate:
    """Return the decision about a candidate: by default twice as fast and half as large."""
    reference = measured(base, name="float32", precision="float32", card_sha256="0" * 64)
    own = measured(candidate, [1.0 / speedup] * 7, size=size, **changes)
    return judge_candidate(reference, own, rule())


def refusals(candidate: GateCandidate) -> list[str]:
    """Return the reason for a refusal as its first significant word."""
    return [reason.split()[1] for reason in candidate.reasons if reason.startswith("refused")]


def test_equal_figures_are_accepted() -> None:
    candidate = judged(BASE)
    assert candidate.is_accepted
    assert refusals(candidate) == []
    assert candidate.reasons[0] == "2.00 times as fast as float32 (speed in 7 pairs, 95 % interval 2.00 to 2.00)"


def test_pooled_figures_are_those_of_a_calculation_by_head() -> None:
    one = cases([0.8, 1.0], [1, 3], [0, 3], lesions=4)
    seen = JUDGE.figures(one)
    assert seen.dice_mean == pytest.approx(0.9)
    assert seen.lesion_sensitivity == 0.5
    assert seen.false_positives_per_scan == 1.5
    other = cases([0.7, 0.8], [2, 4], [1, 3], lesions=4)
    comparison = JUDGE.compare(one, other, seed=0)
    assert comparison.dice.value == pytest.approx(-0.15)
    assert comparison.lesion_sensitivity.value == 0.25
    assert comparison.false_positives_per_scan.value == 0.5


def test_a_small_mean_loss_with_a_wide_interval_is_refused() -> None:
    # Nine cases gain 0.005 and one loses 0.06: the mean is -0.0015, but the interval over the next ten is wide.
    candidate = judged(cases([0.905] * 9 + [0.84], [9] * 10, [0] * 10))
    assert candidate.validation is not None
    assert candidate.validation.dice.value == pytest.approx(-0.0015)
    assert candidate.validation.dice.lower is not None
    assert candidate.validation.dice.lower < -0.01
    assert refusals(candidate) == ["Dice"]


def test_reasons_are_written_as_a_person_writes_them() -> None:
    # Dice falls by 0.0015 on average, 2 of 100 lesions are lost, one false positive is new in ten scans.
    accepted = judged(cases([0.8985] * 10, [8, 8] + [9] * 8, [1] + [0] * 9))
    assert accepted.reasons[2:] == (
        "Dice −0.0015 (95 % interval −0.0015 to −0.0015)",
        "lesion sensitivity −0.020",
        "false positives per scan +0.10",
    )
    # Stored values are not rounded.
    assert accepted.validation is not None
    assert accepted.validation.dice.value == pytest.approx(-0.0015, abs=1e-12)
    refused = judged(cases([0.8896] * 10, [8] * 3 + [9] * 7, [4] * 10))
    assert refused.reasons[:3] == (
        "refused: Dice −0.0104 (95 % interval −0.0104 to −0.0104), must stay above −0.01",
        "refused: lesion sensitivity −0.030, may fall by 0.02",
        "refused: false positives per scan +4.00, may rise by 0.1",
    )


def test_the_same_small_loss_in_every_case_is_accepted() -> None:
    assert judged(cases([0.8985] * 10, [9] * 10, [0] * 10)).is_accepted


def test_the_interval_is_over_patients_not_over_cases() -> None:
    # The loss sits in one patient with five scans: drawing patients widens the interval.
    losses = cases([0.9] * 5 + [0.88] * 5, [9] * 10, [0] * 10, patients="abcdefffff")
    base = cases([0.9] * 10, [9] * 10, [0] * 10, patients="abcdefffff")
    alone = cases([0.9] * 5 + [0.88] * 5, [9] * 10, [0] * 10)
    clustered = JUDGE.compare(base, losses, seed=0).dice
    single = JUDGE.compare(BASE, alone, seed=0).dice
    assert clustered.lower is not None
    assert single.lower is not None
    assert clustered.lower < single.lower


@pytest.mark.parametrize(("lost", "is_accepted"), [(1, True), (2, True), (3, False)])
def test_sensitivity_may_fall_by_the_tolerance(lost: int, is_accepted: bool) -> None:
    hits = [9] * (10 - lost) + [8] * lost
    candidate = judged(cases([0.9] * 10, hits, [0] * 10))
    assert candidate.is_accepted is is_accepted
    assert refusals(candidate) == ([] if is_accepted else ["lesion"])


@pytest.mark.parametrize(("more", "is_accepted"), [(1, True), (2, False)])
def test_false_positives_may_rise_by_the_tolerance(more: int, is_accepted: bool) -> None:
    candidate = judged(cases([0.9] * 10, [9] * 10, [1] * more + [0] * (10 - more)))
    assert candidate.is_accepted is is_accepted
    assert refusals(candidate) == ([] if is_accepted else ["false"])


def test_gains_are_never_refused() -> None:
    base = cases([0.9] * 10, [5] * 10, [4] * 10)
    assert judged(cases([0.99] * 10, [10] * 10, [0] * 10), base=base).is_accepted


@pytest.mark.parametrize(
    ("speedup", "size", "is_accepted"),
    [
        (2.0, 50, True),  # faster and smaller
        (2.0, 150, True),  # faster, though larger
        (1.1, 100, True),  # just fast enough
        (1.05, 100, False),  # neither
        (1.05, 50, True),  # smaller, as fast
        (0.95, 50, True),  # smaller, hardly slower
        (0.34, 50, False),  # smaller, but 2.9 times slower
    ],
)
def test_a_candidate_must_gain_speed_or_size(speedup: float, size: int, is_accepted: bool) -> None:
    assert judged(BASE, speedup=speedup, size=size).is_accepted is is_accepted


def test_two_patients_are_needed_and_a_lesion() -> None:
    one = BASE[:1]
    assert refusals(judged(one, base=one)) == ["Dice"]
    empty = cases([1.0] * 5, [0] * 5, [0] * 5, lesions=0)
    assert refusals(judged(empty, base=empty)) == ["sensitivity"]


def test_speed_is_the_median_of_paired_ratios() -> None:
    speed = speed_of([1.0, 1.0, 4.0], [2.0, 3.0, 4.0], size=30, base_size=40)
    assert speed.speedup == 2.0
    assert speed.speedup_quartiles == (1.5, 2.5)
    assert speed.seconds_per_volume == 1.0
    assert speed.size_ratio == 0.75


def test_the_same_model_in_another_runtime_must_be_faster() -> None:
    same = {"name": "float32", "precision": "float32", "runtime": "onnxruntime", "card_sha256": "0" * 64}
    assert judged(BASE, speedup=1.2, size=90, **same).is_accepted
    smaller = judged(BASE, speedup=1.05, size=50, **same)
    assert not smaller.is_accepted
    assert smaller.reasons[0].startswith("refused: the same model, not faster: 0.95 times the float32 time")


@pytest.mark.parametrize(
    ("number", "interval"), [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (15, (3, 11))]
)
def test_the_interval_of_the_median_is_that_of_the_sign_test(number: int, interval: tuple[int, int]) -> None:
    # Conover, table A3: for n = 15, P(X <= 3) = 0.0176 and P(X <= 4) = 0.0592, so the bounds are the 4th and the 12th value.
    assert median_interval(list(range(number))[::-1]) == interval


def test_thousands_of_rounds_have_an_interval() -> None:
    # A round per validation case: 2,000 cases. The binomial with p = 1/2 has its 2.5 % quantile at 956.
    assert median_interval(range(2000)) == (955, 1044)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60), st.floats(0.1, 10))
def test_the_interval_holds_the_median_and_scales_with_the_values(values: list[float], factor: float) -> None:
    low, high = median_interval(values)
    assert low <= statistics.median(values) <= high
    assert median_interval([factor * value for value in values]) == (factor * low, factor * high)


def test_one_slow_round_of_ten_does_not_hide_a_gain_and_of_seven_it_does() -> None:
    for number, is_faster in ((7, False), (10, True)):
        seconds = [0.5] * (number - 1) + [1.0]
        speed = speed_of(seconds, [1.0] * number, size=100, base_size=100)
        assert speed.interval is not None
        assert (speed.interval[0] >= 1.1) is is_faster
        assert is_open(speed, TOLERANCES, is_same_model=False) is not is_faster


@pytest.mark.parametrize(
    ("ratios", "opened"),
    [
        ([2.0] * 7, False),  # faster
        ([1.0] * 7, False),  # neither faster nor slower than allowed
        ([0.5] * 7, False),  # slower
        ([1.05] * 6 + [1.2], True),  # perhaps faster
        ([0.95] * 6 + [0.8], True),  # perhaps too slow
    ],
)
def test_more_rounds_are_measured_only_where_they_could_change_the_decision(ratios: list[float], opened: bool) -> None:
    seconds, base_seconds = [1 / ratio for ratio in ratios], [1.0] * len(ratios)
    speed = speed_of(seconds, base_seconds, size=50, base_size=100)
    assert is_open(speed, TOLERANCES, is_same_model=False) is opened
    # Without a gain in size, it does not matter how much slower it is.
    may_be_faster = opened and max(ratios) >= 1.1
    assert is_open(speed, TOLERANCES, is_same_model=True) is may_be_faster
    larger = speed_of(seconds, base_seconds, size=150, base_size=100)
    assert is_open(larger, TOLERANCES, is_same_model=False) is may_be_faster


def test_a_candidate_of_fewer_rounds_is_compared_with_the_same_rounds() -> None:
    assert speed_of([1.0, 1.0], [2.0, 3.0, 50.0], size=1, base_size=1).speedup == 2.5


def one(
    speedup: float, size: int, is_accepted: bool = True, *, interval: tuple[float, float] | None = None
) -> GateCandidate:
    speed = GateSpeed(
        seconds_per_volume=1.0, speedup=speedup, speedup_quartiles=(1.0, 1.0), pairs=7, model_bytes=size, size_ratio=0.5,
        interval=interval or (speedup, speedup),
    )  # fmt: skip
    own = {"precision": "int8", "card_sha256": f"{speedup}-{size}", "reasons": (), "validation": None}
    return GateCandidate(is_accepted=is_accepted, speed=speed, **own)  # type: ignore[arg-type]


def test_the_fastest_accepted_candidate_is_chosen_then_the_smallest() -> None:
    refused, slow, fast, large = one(9.0, 1, False), one(1.5, 10), one(3.0, 20), one(3.0, 30)
    assert choose([refused, slow, large, fast], TOLERANCES) is fast
    assert choose([refused], TOLERANCES) is None
    assert choose([], TOLERANCES) is None


def test_of_candidates_that_cannot_be_told_apart_by_speed_the_smallest_is_chosen() -> None:
    large, small = one(3.0, 30, interval=(2.8, 3.2)), one(2.9, 20, interval=(2.7, 3.0))
    assert choose([large, small], TOLERANCES) is small
    assert choose([large, one(2.7, 20, interval=(2.6, 2.75))], TOLERANCES) is large


def test_without_a_faster_candidate_the_smallest_is_chosen() -> None:
    large, small = one(1.08, 30, interval=(1.05, 1.2)), one(0.95, 20)
    assert choose([large, small], TOLERANCES) is small


def test_a_fixed_choice_needs_the_metrics_and_no_speed() -> None:
    base = measured(BASE, name="float32", precision="float32", card_sha256="0" * 64)
    fixed = rule(fixed_choice="int8:openvino")
    slow = decide(base, [measured(BASE, [5.0] * 7, size=500)], fixed)
    assert slow.accepted == 0
    assert "int8 (OpenVINO) accepted: fixed by --fixed-choice" in slow.reason
    blind = decide(base, [measured(cases([0.2] * 10, [0] * 10, [0] * 10))], fixed)
    assert blind.accepted is None
    assert blind.reason.startswith("float32 (OpenVINO) kept. int8 (OpenVINO) refused: Dice")
    assert decide(base, [], fixed).reason == "float32 (OpenVINO) kept: fixed by --fixed-choice."
