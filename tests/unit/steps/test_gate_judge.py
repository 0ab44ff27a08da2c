"""The gate's rule on figures made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from medweave_core.contracts.gate import GateCandidate, GateCase, GateSpeed, GateTolerances
from medweave_steps.gate.judge import choose, decide, speed_of
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


def judged(
    candidate: list[GateCase], *, base: list[GateCase] = BASE, speedup: float = 2.0, size: int = 50
) -> GateCandidate:
    """Return the decision about a candidate: by default twice as fast and half as large."""
    speed = speed_of([1.0 / speedup] * 7, [1.0] * 7, size=size, base_size=100)
    return decide(JUDGE, "int8", "0" * 64, speed, JUDGE.compare(base, candidate, seed=0), TOLERANCES)


def refusals(candidate: GateCandidate) -> list[str]:
    """Return the reason for a refusal as its first significant word."""
    return [reason.split()[1] for reason in candidate.reasons if reason.startswith("refused")]


def test_equal_figures_are_accepted() -> None:
    candidate = judged(BASE)
    assert candidate.is_accepted
    assert refusals(candidate) == []
    assert candidate.reasons[0] == "2.00 times as fast as float32 (median of 7 pairs, quartiles 2.00 to 2.00)"


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


def test_the_fastest_accepted_candidate_is_chosen_then_the_smallest() -> None:
    def one(speedup: float, size: int, is_accepted: bool = True) -> GateCandidate:
        speed = GateSpeed(
            seconds_per_volume=1.0,
            speedup=speedup,
            speedup_quartiles=(1.0, 1.0),
            pairs=7,
            model_bytes=size,
            size_ratio=1.0,
        )
        values: dict[str, Any] = {
            "precision": "int8",
            "card_sha256": f"{speedup}-{size}",
            "reasons": (),
            "validation": None,
        }
        return GateCandidate(is_accepted=is_accepted, speed=speed, **values)

    refused, slow, fast, large = one(9.0, 1, False), one(1.5, 10), one(3.0, 20), one(3.0, 30)
    assert choose([refused, slow, large, fast]) is fast
    assert choose([refused]) is None
    assert choose([]) is None
