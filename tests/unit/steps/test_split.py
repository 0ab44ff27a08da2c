"""Patients into splits: no leakage, every patient once, fixed splits unchanged, the same draw every time."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.volume import Grid
from medweave_core.errors import UserInputError
from medweave_steps.preprocess.split import assign_splits
from support.cwl_files import ROOT

GRID = Grid(
    shape=(2, 2, 2), affine=((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))
)
FRACTIONS = (0.70, 0.15, 0.15)


def case(patient: object, scan: object = 0, *, fixed=None, content: str | None = None, classes=None) -> CaseEntry:
    case_id = f"case-{patient}-{scan}"
    return CaseEntry(
        case_id=case_id,
        series_ordinal=1,
        patient_key=f"key-{patient}",
        source_format="nifti",
        files=("a.nii",),
        ground_truth=None,
        grid=GRID,
        fixed_split=fixed,
        content_sha256=content or case_id,
        classes=classes,
    )


def split(cases, *, fractions=FRACTIONS, seed=0, is_stratified=False):
    return assign_splits(cases, fractions=fractions, seed=seed, is_stratified=is_stratified)


def digest(splits) -> str:
    return hashlib.sha256(repr(sorted(splits.items())).encode()).hexdigest()[:16]


def patients_in(cases, splits) -> dict[str, set[str]]:
    result: dict[str, set[str]] = {"train": set(), "validation": set(), "test": set()}
    for entry in cases:
        result[splits[entry.case_id]].add(entry.patient_key)
    return result


cohorts = st.lists(st.integers(1, 4), min_size=3, max_size=60).map(
    lambda counts: [case(patient, scan) for patient, count in enumerate(counts) for scan in range(count)]
)
shares = st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 20)).map(
    lambda parts: tuple(part / sum(parts) for part in parts)
)


@given(cohorts, shares, st.integers(0, 2**32 - 1))
def test_every_case_has_a_split_and_no_patient_has_two(cases, fractions, seed):
    splits = split(cases, fractions=fractions, seed=seed)
    assert splits.keys() == {entry.case_id for entry in cases}
    groups = patients_in(cases, splits)
    assert groups["train"] | groups["validation"] | groups["test"] == {entry.patient_key for entry in cases}
    assert sum(map(len, groups.values())) == len({entry.patient_key for entry in cases})


@given(st.integers(3, 400), shares, st.integers(0, 99))
def test_sizes_are_within_one_patient_of_the_shares(number, fractions, seed):
    cases = [case(patient) for patient in range(number)]
    groups = patients_in(cases, split(cases, fractions=fractions, seed=seed))
    for name, share in zip(("train", "validation", "test"), fractions, strict=True):
        assert (share > 0) == bool(groups[name])
        # A split that would round to zero patients takes one from the largest.
        if min(number * other for other in fractions if other > 0) >= 1:
            assert abs(len(groups[name]) - number * share) < 1


@given(cohorts, st.integers(0, 99), st.randoms(use_true_random=False))
def test_the_order_of_the_cases_does_not_matter(cases, seed, shuffler: random.Random):
    shuffled = list(cases)
    shuffler.shuffle(shuffled)
    assert split(cases, seed=seed) == split(shuffled, seed=seed)


def test_the_cases_of_msd_task01_are_split_as_the_explanation_says():
    # DistMIS has 484 patients and 70/15/15; its code cuts off to 338, 73 and 73.
    splits = list(split([case(patient) for patient in range(484)]).values())
    assert [splits.count(name) for name in ("train", "validation", "test")] == [339, 73, 72]
    message = (ROOT / "docs" / "explanation" / "brain-pipeline.md").read_text(encoding="utf-8")
    assert "339, 73 and 72 of 484" in message


def test_the_seed_decides():
    cases = [case(patient) for patient in range(40)]
    assert split(cases, seed=1) == split(cases, seed=1)
    assert len({tuple(sorted(split(cases, seed=seed).items())) for seed in range(5)}) == 5


def test_a_fixed_draw_stays_what_it_was():
    """A changed draw would silently move patients between splits of an existing project."""
    cases = [case(patient) for patient in range(8)]
    assert sorted(k for k, v in split(cases, seed=7).items() if v != "train") == ["case-5-0", "case-6-0"]


@given(st.integers(2, 40), st.integers(1, 10), st.integers(0, 99))
def test_a_fixed_test_split_is_complete(number, number_fixed, seed):
    fixed = [case(f"held-out-{i}", fixed="test") for i in range(number_fixed)]
    free = [case(i) for i in range(number)]
    groups = patients_in(fixed + free, split(fixed + free, seed=seed))
    assert groups["test"] == {entry.patient_key for entry in fixed}
    assert abs(len(groups["train"]) - number * 70 / 85) < 1 or number < 6
    assert groups["train"]
    assert groups["validation"]


def test_one_fixed_scan_fixes_the_patient():
    cases = [case("a", 0, fixed="test"), case("a", 1), *[case(i) for i in range(4)]]
    assert split(cases)["case-a-1"] == "test"


def test_equal_scans_of_two_patients_stay_together():
    cases = [case(i, content=f"scan-{i % 10}") for i in range(20)]
    for seed in range(10):
        splits = split(cases, seed=seed)
        assert all(splits[f"case-{i}-0"] == splits[f"case-{i + 10}-0"] for i in range(10))


def test_everything_fixed_needs_no_draw():
    cases = [case("a", fixed="train"), case("b", fixed="validation"), case("c", fixed="test")]
    assert split(cases) == {"case-a-0": "train", "case-b-0": "validation", "case-c-0": "test"}


def test_patients_next_to_three_fixed_splits_are_for_training():
    cases = [case("a", fixed="train"), case("b", fixed="validation"), case("c", fixed="test"), case("d")]
    assert split(cases)["case-d-0"] == "train"


@pytest.mark.parametrize("number", [1, 2])
def test_too_few_patients(number):
    with pytest.raises(UserInputError) as caught:
        split([case(patient, scan) for patient in range(number) for scan in range(5)])
    assert f"{number} patient" in caught.value.seen
    assert "at least 3" in caught.value.expected


def test_too_few_next_to_a_fixed_test_split():
    with pytest.raises(UserInputError) as caught:
        split([case("a", fixed="test"), case("b", fixed="test"), case("c")])
    assert "1 left for train, validation" in caught.value.seen


def test_only_test_patients_leave_nothing_to_train_on():
    with pytest.raises(UserInputError, match="too few"):
        split([case(i, fixed="test") for i in range(5)])


def test_a_patient_fixed_into_two_splits():
    with pytest.raises(UserInputError, match="same patient is in two splits") as caught:
        split([case("a", 0, fixed="train"), case("a", 1, fixed="test"), *[case(i) for i in range(5)]])
    assert "case-a-0 in train" in caught.value.seen
    assert "key-a" not in str(caught.value)


def test_one_scan_under_two_patients_fixed_into_two_splits():
    with pytest.raises(UserInputError, match="same patient"):
        split([case("a", fixed="train", content="x"), case("b", fixed="test", content="x"), case("c"), case("d")])


def mixed_cohort(number: int = 200) -> list[CaseEntry]:
    """Return patients with one to three scans; some are fixed to the test split, and some scans are equal."""
    return [
        case(patient, scan, fixed="test" if patient % 11 == 0 else None, content=f"scan-{patient % 190}-{scan}")
        for patient in range(number)
        for scan in range(1 + patient % 3)
    ]


@pytest.mark.parametrize(("fixed", "expected"), [(True, "5a96ad9cf21d4adc"), (False, "5e05b97ad0d3e893")])
def test_the_split_of_a_cohort_without_classes_stays_what_it_was(fixed: bool, expected: str) -> None:
    """Computed before the split of classifications was stratified."""
    cases = [one if fixed else dataclasses.replace(one, fixed_split=None) for one in mixed_cohort()]
    assert digest(split(cases, seed=3)) == expected


sizes_of_classes = st.lists(st.integers(1, 40), min_size=2, max_size=8).filter(lambda sizes: sum(sizes) >= 3)


def classified(sizes: list[int]) -> list[CaseEntry]:
    return [case(f"{name}-{i}", classes=(f"class-{name}",)) for name, size in enumerate(sizes) for i in range(size)]


@given(sizes_of_classes, shares, st.integers(0, 99))
def test_each_split_has_its_share_of_each_class(sizes, fractions, seed):
    cases = classified(sizes)
    splits = split(cases, fractions=fractions, seed=seed, is_stratified=True)
    totals = Counter(splits.values())
    assert totals == Counter(split(cases, fractions=fractions, seed=seed).values())
    by_class = Counter((entry.classes, splits[entry.case_id]) for entry in cases)
    for number, size in enumerate(sizes):
        for name, total in totals.items():
            assert abs(by_class[(f"class-{number}",), name] - size * total / len(cases)) <= 1


@given(sizes_of_classes, st.integers(0, 99), st.randoms(use_true_random=False))
def test_a_stratified_split_depends_on_the_seed_and_not_on_the_order(sizes, seed, shuffler: random.Random):
    cases = classified(sizes)
    shuffled = list(cases)
    shuffler.shuffle(shuffled)
    assert split(cases, seed=seed, is_stratified=True) == split(shuffled, seed=seed, is_stratified=True)


def test_the_groups_of_the_paper_are_split_in_proportion():
    # AD 389, pMCI 172, sMCI 232, NC 400: 70, 15 and 15 % of each.
    cases = classified([389, 172, 232, 400])
    splits = split(cases, is_stratified=True)
    by_class = Counter((entry.classes[0], splits[entry.case_id]) for entry in cases)
    train = [by_class[f"class-{number}", "train"] for number in range(4)]
    assert sum(train) == 835
    assert all(abs(count - size * 0.7) <= 1 for count, size in zip(train, (389, 172, 232, 400), strict=True))


def test_the_only_patient_of_a_class_is_for_training():
    cases = classified([50, 1, 1])
    for seed in range(20):
        splits = split(cases, seed=seed, is_stratified=True)
        assert (splits["case-1-0-0"], splits["case-2-0-0"]) == ("train", "train")


def test_a_stratified_split_keeps_fixed_splits_and_patients_together():
    fixed = [case(f"f{i}", fixed="test", classes=("A",)) for i in range(3)]
    several = [case(i, scan, classes=("AB"[scan],)) for i in range(10) for scan in range(2)]
    free = [case(f"a{i}", classes=("A",)) for i in range(40)]
    splits = split(fixed + several + free, is_stratified=True)
    groups = patients_in(fixed + several + free, splits)
    assert groups["test"] == {entry.patient_key for entry in fixed}
    assert not groups["train"] & groups["validation"]
    # The patients with both classes count for B, the rarer one: 10 * 70 / 85 of them are for training.
    assert len(groups["train"] & {f"key-{i}" for i in range(10)}) == 8
