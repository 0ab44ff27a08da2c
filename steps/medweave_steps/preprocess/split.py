"""Patients into training, validation and test: drawn by patient, never by scan, from a seed; stratified by class on request."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from medweave_core.contracts.cohort import CaseEntry, Split
from medweave_core.errors import UserInputError

SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")


def assign_splits(
    cases: Sequence[CaseEntry], *, fractions: tuple[float, float, float], seed: int, is_stratified: bool = False
) -> dict[str, Split]:
    """Return the split of every case.

    Cases of one patient, and scans that are equal voxel for voxel, stay together. Splits that the cohort fixes are complete: the
    other patients are drawn into the remaining ones, in the ratio of their fractions (into training if none remains).
    The result depends on the patients and the seed, not on the order of the cases.

    Args:
        cases: of one cohort.
        fractions: shares of patients for train, validation, test; train and validation above 0.
        seed: of the draw.
        is_stratified: give each split its share of the patients of each class, to less than one patient; a patient with images of
            several classes counts for the rarest of them. Sizes of the splits do not change.
    Returns:
        case id to split.
    Raises:
        UserInputError: the fixed splits put one patient in two splits, or there are too few patients for all splits.
    """
    groups = _groups(cases)
    fixed = {key: split for key, members in groups.items() if (split := _fixed_split(members)) is not None}
    free = [key for key in groups if key not in fixed]
    shares = dict(zip(SPLITS, fractions, strict=True))
    wanted = {split: share for split, share in shares.items() if share > 0 and split not in fixed.values()}
    if len(free) < len(wanted) and (free or wanted.keys() & {"train", "validation"}):
        raise _too_few(len(groups), len(free), list(wanted), fixed)
    wanted = wanted or {"train": 1.0}
    drawn = dict(fixed)
    # Sorted by digest and not drawn by a random generator, whose stream may change from one version of NumPy to the next.
    order = sorted(free, key=lambda key: hashlib.sha256(f"{seed} {key}".encode()).digest())
    strata = _strata(order, groups) if is_stratified else {"": order}
    totals = _counts(len(free), list(wanted.values()))
    counts = _counts_by_stratum({name: len(members) for name, members in strata.items()}, totals)
    for name, members in strata.items():
        place = 0
        for split, count in zip(wanted, counts[name], strict=True):
            drawn.update(dict.fromkeys(members[place : place + count], split))
            place += count
    return {case.case_id: drawn[key] for key, members in groups.items() for case in members}


def _groups(cases: Sequence[CaseEntry]) -> dict[str, list[CaseEntry]]:
    """Return cases that must stay together, under the smallest patient key among them."""
    leader: dict[str, str] = {}

    def find(key: str) -> str:
        while leader.setdefault(key, key) != key:
            key = leader[key]
        return key

    for case in cases:
        a, b = sorted((find(f"patient {case.patient_key}"), find(f"scan {case.content_sha256}")))
        leader[b] = a
    groups: dict[str, list[CaseEntry]] = {}
    for case in cases:
        groups.setdefault(find(f"patient {case.patient_key}"), []).append(case)
    return groups


def _fixed_split(members: Sequence[CaseEntry]) -> Split | None:
    named: dict[Split, str] = {}
    for case in sorted(members, key=lambda case: case.case_id):
        if case.fixed_split is not None:
            named.setdefault(case.fixed_split, case.case_id)
    if len(named) > 1:
        raise UserInputError(
            "the same patient is in two splits.",
            seen=", ".join(f"{case_id} in {split}" for split, case_id in named.items())
            + " (splits.json of the cohort)",
            expected="all scans of a patient, and all copies of a scan, in one split",
            do="correct splits.json; test metrics are invalid if a test patient is in the training split",
        )
    return next(iter(named), None)


def _counts(number: int, shares: Sequence[float]) -> list[int]:
    """Return whole numbers in the ratio of the shares (largest remainder), each at least 1 where the number allows it."""
    if number == 0:
        return [0] * len(shares)
    exact = [number * share / sum(shares) for share in shares]
    counts = [int(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: number - sum(counts)]:
        counts[i] += 1
    while 0 in counts:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    return counts


def _strata(order: Sequence[str], groups: Mapping[str, Sequence[CaseEntry]]) -> dict[str, list[str]]:
    """Return the patients by class, in their order; the class of a patient is the rarest of its images."""
    classes = {key: {name for case in groups[key] for name in case.classes or ()} for key in order}
    frequency = Counter(name for names in classes.values() for name in names)
    strata: dict[str, list[str]] = {}
    for key in order:
        stratum = min(classes[key], key=lambda name: (frequency[name], name), default="")
        strata.setdefault(stratum, []).append(key)
    return strata


def _counts_by_stratum(sizes: Mapping[str, int], totals: Sequence[int]) -> dict[str, list[int]]:
    """Return how many patients of each stratum each split gets: the exact share rounded down or up, with the given totals.

    After rounding down, a stratum lacks fewer patients than there are splits. They go to the splits that lack most, one each: the
    construction of a 0/1 matrix with given row and column sums (Gale 1957, Ryser 1957). The exact shares show that one exists.

    Args:
        sizes: patients of each stratum.
        totals: patients of each split; the sum of the sizes.
    """
    number = max(sum(totals), 1)
    counts = {name: [size * total // number for total in totals] for name, size in sizes.items()}
    lacking = [total - sum(row[place] for row in counts.values()) for place, total in enumerate(totals)]
    # Small strata first: their only patient goes to the split with the largest share, which is training.
    for name, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        rest = size - sum(counts[name])
        remainders = [size * total % number for total in totals]
        for place in sorted(range(len(totals)), key=lambda place: (-lacking[place], -remainders[place], place))[:rest]:
            counts[name][place] += 1
            lacking[place] -= 1
    return counts


def _too_few(number: int, free: int, wanted: Sequence[Split], fixed: Mapping[str, Split]) -> UserInputError:
    fixed_text = f", of whom {len(fixed)} have a split fixed by splits.json" if fixed else ""
    return UserInputError(
        "the cohort has too few patients to split.",
        seen=f"{number} {'patient' if number == 1 else 'patients'}{fixed_text}; {free} left for {', '.join(wanted)}",
        expected=f"at least {len(wanted)}: one each for {', '.join(wanted)}",
        do="add patients; to segment without training, use --purpose inference",
    )
