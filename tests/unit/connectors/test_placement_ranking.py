"""The order of locations for a job, and the data rules: the parts without StreamFlow."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_connectors.engine.scheduling.ranking import (
    Candidate,
    JobInput,
    bytes_at,
    inputs_to_measure,
    rank_candidates,
)
from medweave_connectors.policy.data_rules import CLASSES, DataRules, allowed_deployments, forbidden_classes

GPUS = st.one_of(st.none(), st.sampled_from([0, 1, 2, float("inf")]))
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.text("abc", min_size=1, max_size=3),
        gpus=GPUS,
        num_bytes=st.integers(0, 3),
        load=st.sampled_from([0.0, 0.5, 1.0]),
    ),
    max_size=6,
    unique_by=lambda candidate: candidate.name,
)
PLACES = ("a", "b", "c")
INPUTS = st.lists(
    st.builds(
        JobInput,
        path=st.text("/xyz", min_size=1, max_size=4),
        num_bytes=st.one_of(st.none(), st.integers(1, 5)),
        at=st.frozensets(st.sampled_from(PLACES)),
    ),
    max_size=5,
    unique_by=lambda item: item.path,
)
CLASSES_OF_STEP = st.lists(st.sampled_from(CLASSES), min_size=1)
MAY_HOLD = st.dictionaries(st.sampled_from(PLACES), st.lists(st.sampled_from(CLASSES)))


def names(candidates: list[Candidate]) -> list[str]:
    return [candidate.name for candidate in candidates]


def test_gpus_come_before_data_and_data_before_load() -> None:
    plain = Candidate(name="plain", gpus=0, load=1)
    near = Candidate(name="near", gpus=0, num_bytes=1, load=1)
    idle = Candidate(name="idle", gpus=0)
    with_gpus = Candidate(name="with-gpus", gpus=2, num_bytes=9)
    assert names(rank_candidates([with_gpus, plain, idle, near], gpus=0)) == ["near", "idle", "plain", "with-gpus"]
    assert names(rank_candidates([plain, near, with_gpus], gpus=1)) == ["with-gpus"]
    assert names(rank_candidates([Candidate(name="unknown", num_bytes=9), with_gpus], gpus=2)) == [
        "with-gpus",
        "unknown",
    ]


@given(CANDIDATES, st.integers(0, 2))
def test_all_candidates_that_may_have_the_gpus_are_ranked_and_no_others(candidates: list[Candidate], gpus: int) -> None:
    able = [candidate.name for candidate in candidates if candidate.gpus is None or candidate.gpus >= gpus]
    assert sorted(names(rank_candidates(candidates, gpus=gpus))) == sorted(able)


@pytest.mark.slow
@given(CANDIDATES, st.integers(0, 2))
def test_no_candidate_is_worse_than_the_next(candidates: list[Candidate], gpus: int) -> None:
    for better, worse in itertools.pairwise(rank_candidates(candidates, gpus=gpus)):
        if gpus == 0 and bool(better.gpus) != bool(worse.gpus):
            assert not better.gpus, "a job that requests no GPU avoids them"
        elif gpus and (better.gpus is None) != (worse.gpus is None):
            assert better.gpus is not None, "known GPUs come before unknown ones"
        else:
            assert (-better.num_bytes, better.load) <= (-worse.num_bytes, worse.load)


@pytest.mark.slow
@given(CANDIDATES, st.integers(0, 2), st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_decide(
    candidates: list[Candidate], gpus: int, chance: random.Random
) -> None:
    def facts(unordered: list[Candidate]) -> list[tuple[bool, int, float]]:
        ranked = rank_candidates(unordered, gpus=gpus)
        return [(one.gpus is None if gpus else bool(one.gpus), one.num_bytes, one.load) for one in ranked]

    shuffled = list(candidates)
    chance.shuffle(shuffled)
    assert facts(shuffled) == facts(candidates)
    assert rank_candidates(candidates, gpus=gpus) == rank_candidates(candidates, gpus=gpus)


def test_equal_candidates_keep_their_order() -> None:
    assert names(rank_candidates([Candidate(name="b"), Candidate(name="a")], gpus=0)) == ["b", "a"]


@pytest.mark.slow
@given(INPUTS, st.lists(st.integers(1, 1000), min_size=10, max_size=10))
def test_sizes_that_are_not_measured_could_not_change_the_order(inputs: list[JobInput], numbers: list[int]) -> None:
    if inputs_to_measure(inputs):
        return
    sizes = {item.path: number for item, number in zip(inputs, numbers, strict=False)}
    orders = []
    for known in ({}, sizes):
        num_bytes = bytes_at(inputs, known, PLACES)
        orders.append(
            names(rank_candidates([Candidate(name=place, num_bytes=num_bytes[place]) for place in PLACES], gpus=0))
        )
    assert orders[0] == orders[1]


@given(INPUTS)
def test_only_unknown_sizes_are_measured(inputs: list[JobInput]) -> None:
    assert all(item.num_bytes is None and item.at for item in inputs_to_measure(inputs))


def test_sizes_are_measured_if_no_location_has_all_copies() -> None:
    at_a, at_b = (
        JobInput(path="/x", num_bytes=None, at=frozenset("a")),
        JobInput(path="/y", num_bytes=7, at=frozenset("b")),
    )
    nowhere, everywhere = (JobInput(path=str(n), num_bytes=None, at=frozenset(at)) for n, at in enumerate(("", PLACES)))
    assert inputs_to_measure([at_a, at_b, nowhere]) == [at_a]
    assert inputs_to_measure([at_a, nowhere, everywhere]) == []
    assert bytes_at([at_a, at_b, everywhere], {"/x": 8}, PLACES) == {"a": 9, "b": 8, "c": 1}


@given(CLASSES_OF_STEP, MAY_HOLD)
def test_a_step_may_run_where_all_its_classes_are_allowed(classes: list[str], may_hold: dict[str, list[str]]) -> None:
    rules = DataRules(where="here", holds={"/step": classes}, may_hold=may_hold)
    for place in PLACES:
        forbidden = [name for name in classes if name not in may_hold.get(place, [])]
        assert set(forbidden_classes(classes, place, may_hold)) == set(forbidden)
        assert (place in allowed_deployments(classes, may_hold)) == (not forbidden and place in may_hold)
        assert (rules.fault("/step", place) is None) == (not forbidden or not may_hold)
        assert rules.fault("/step/below", place) == rules.fault("/step", place) or forbidden


def test_a_refusal_names_the_classes_and_the_allowed_deployments() -> None:
    may_hold = {"cloud": ["derived"], "desk": ["identified", "derived"]}
    rules = DataRules(where="bindingFilters.r.config", holds={"/a": ["identified", "derived"]}, may_hold=may_hold)
    fault = rules.fault("/a/inner", "cloud")
    assert fault is not None
    assert fault.what == "bindingFilters.r.config.mayHold.cloud: step /a/inner must not run there, because of its data."
    assert fault.seen == "identified (holds./a) at deployment 'cloud', which may hold derived"
    assert fault.expected == "a deployment that may hold identified, derived: desk"
    assert fault.do == "bind /a/inner to desk"


@pytest.mark.parametrize("step", ["/b", "/ab"])
def test_a_step_without_declared_classes_may_run_nowhere(step: str) -> None:
    rules = DataRules(where="here", holds={"/a": ["model"]}, may_hold={"desk": list(CLASSES)})
    fault = rules.fault(step, "desk")
    assert fault is not None
    assert fault.what == f"here.holds: the data classes of step {step} are not declared."
