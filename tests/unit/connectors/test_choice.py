"""Which place a job gets, and which data rules leave it: the parts that need no engine."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_connectors.engine.scheduling.choice import Candidate, Input, bytes_at, in_order, to_measure
from medweave_connectors.policy.data_rules import CLASSES, DataRules, able, too_sensitive

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
    unique_by=lambda each: each.name,
)
PLACES = ("a", "b", "c")
INPUTS = st.lists(
    st.builds(
        Input,
        path=st.text("/xyz", min_size=1, max_size=4),
        num_bytes=st.one_of(st.none(), st.integers(1, 5)),
        at=st.frozensets(st.sampled_from(PLACES)),
    ),
    max_size=5,
    unique_by=lambda each: each.path,
)
HELD = st.lists(st.sampled_from(CLASSES), min_size=1)
MAY_HOLD = st.dictionaries(st.sampled_from(PLACES), st.lists(st.sampled_from(CLASSES)))


def names(candidates: list[Candidate]) -> list[str]:
    return [each.name for each in candidates]


def test_gpus_come_before_data_and_data_before_load() -> None:
    plain = Candidate(name="plain", gpus=0, load=1)
    near = Candidate(name="near", gpus=0, num_bytes=1, load=1)
    idle = Candidate(name="idle", gpus=0)
    with_gpus = Candidate(name="with-gpus", gpus=2, num_bytes=9)
    assert names(in_order([with_gpus, plain, idle, near], gpus=0)) == ["near", "idle", "plain", "with-gpus"]
    assert names(in_order([plain, near, with_gpus], gpus=1)) == ["with-gpus"]
    assert names(in_order([Candidate(name="unknown", num_bytes=9), with_gpus], gpus=2)) == ["with-gpus", "unknown"]


@given(CANDIDATES, st.integers(0, 2))
def test_only_places_that_may_have_the_gpus_are_left_and_all_of_them(found: list[Candidate], gpus: int) -> None:
    left = in_order(found, gpus=gpus)
    assert sorted(names(left)) == sorted(each.name for each in found if each.gpus is None or each.gpus >= gpus)


@pytest.mark.slow
@given(CANDIDATES, st.integers(0, 2))
def test_each_place_is_as_good_as_the_next_or_better(found: list[Candidate], gpus: int) -> None:
    for better, worse in itertools.pairwise(in_order(found, gpus=gpus)):
        if gpus == 0 and bool(better.gpus) != bool(worse.gpus):
            assert not better.gpus, "a job without a request keeps away from GPUs"
        elif gpus and (better.gpus is None) != (worse.gpus is None):
            assert better.gpus is not None, "GPUs that are known come before those that may be there"
        else:
            assert (-better.num_bytes, better.load) <= (-worse.num_bytes, worse.load)


@pytest.mark.slow
@given(CANDIDATES, st.integers(0, 2), st.randoms(use_true_random=False))
def test_what_decides_is_not_the_order_in_which_places_are_named(
    found: list[Candidate], gpus: int, chance: random.Random
) -> None:
    def facts(candidates: list[Candidate]) -> list[tuple[bool, int, float]]:
        left = in_order(candidates, gpus=gpus)
        return [(each.gpus is None if gpus else bool(each.gpus), each.num_bytes, each.load) for each in left]

    shuffled = list(found)
    chance.shuffle(shuffled)
    assert facts(shuffled) == facts(found)
    assert in_order(found, gpus=gpus) == in_order(found, gpus=gpus)


def test_equal_places_stay_in_their_order() -> None:
    assert names(in_order([Candidate(name="b"), Candidate(name="a")], gpus=0)) == ["b", "a"]


@pytest.mark.slow
@given(INPUTS, st.lists(st.integers(1, 1000), min_size=10, max_size=10))
def test_sizes_that_are_not_asked_for_could_not_change_the_order(inputs: list[Input], numbers: list[int]) -> None:
    if to_measure(inputs):
        return
    sizes = {each.path: number for each, number in zip(inputs, numbers, strict=False)}
    orders = []
    for known in ({}, sizes):
        num_bytes = bytes_at(inputs, known, PLACES)
        orders.append(names(in_order([Candidate(name=place, num_bytes=num_bytes[place]) for place in PLACES], gpus=0)))
    assert orders[0] == orders[1]


@given(INPUTS)
def test_only_unknown_sizes_are_asked_for(inputs: list[Input]) -> None:
    assert all(each.num_bytes is None and each.at for each in to_measure(inputs))


def test_sizes_are_asked_for_where_the_data_lie_apart() -> None:
    here, there = Input(path="/x", num_bytes=None, at=frozenset("a")), Input(path="/y", num_bytes=7, at=frozenset("b"))
    nowhere, everywhere = (Input(path=str(n), num_bytes=None, at=frozenset(at)) for n, at in enumerate(("", PLACES)))
    assert to_measure([here, there, nowhere]) == [here]
    assert to_measure([here, nowhere, everywhere]) == []
    assert bytes_at([here, there, everywhere], {"/x": 8}, PLACES) == {"a": 9, "b": 8, "c": 1}


@given(HELD, MAY_HOLD)
def test_a_step_may_be_where_all_that_it_holds_may_be(held: list[str], may_hold: dict[str, list[str]]) -> None:
    rules = DataRules(where="here", holds={"/step": held}, may_hold=may_hold)
    for place in PLACES:
        forbidden = [each for each in held if each not in may_hold.get(place, [])]
        assert set(too_sensitive(held, place, may_hold)) == set(forbidden)
        assert (place in able(held, may_hold)) == (not forbidden and place in may_hold)
        assert (rules.fault("/step", place) is None) == (not forbidden or not may_hold)
        assert rules.fault("/step/below", place) == rules.fault("/step", place) or forbidden


def test_a_refusal_says_what_was_seen_and_where_the_step_may_go() -> None:
    may_hold = {"cloud": ["derived"], "desk": ["identified", "derived"]}
    rules = DataRules(where="bindingFilters.r.config", holds={"/a": ["identified", "derived"]}, may_hold=may_hold)
    fault = rules.fault("/a/inner", "cloud")
    assert fault is not None
    assert (
        fault.what
        == "bindingFilters.r.config.mayHold.cloud: step /a/inner must not run there, for what it reads and writes."
    )
    assert fault.seen == "identified (holds./a) at deployment 'cloud', which may hold derived"
    assert fault.expected == "a deployment that may hold identified, derived: desk"
    assert fault.do == "bind /a/inner to desk"


@pytest.mark.parametrize("step", ["/b", "/ab"])
def test_a_step_that_nothing_is_said_about_may_be_nowhere(step: str) -> None:
    rules = DataRules(where="here", holds={"/a": ["model"]}, may_hold={"desk": list(CLASSES)})
    fault = rules.fault(step, "desk")
    assert fault is not None
    assert fault.what == f"here.holds: nothing says which data step {step} reads and writes."
