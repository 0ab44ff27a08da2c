"""GABRA: placements are feasible, reproducible and optimal in small cases; reference loads of the paper's network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from medweave_core.contracts.placement import Device, Partition, PlacementFitness, PlacementMode
from medweave_core.errors import UserInputError
from medweave_steps.training.placement.fitness import fitness_of, makespan, profit
from medweave_steps.training.placement.gabra import optimal_assignment, place
from medweave_steps.training.placement.operators import CROSSOVER_PROBABILITY, crossover, invert, select
from medweave_steps.training.placement.problem import PlacementProblem

RESNET18_GMAC = (0.223, 3.567, 3.567, 1.354, 1.784, 0.677, 0.892, 0.387, 0.510, 0.001)
"""Loads of the partitions of 3D-ResAttNet-18 at 96 x 112 x 96: stem, eight residual blocks, head."""
FITNESSES: tuple[PlacementFitness, ...] = ("profit", "makespan", "profit+makespan")
MODES: tuple[PlacementMode, ...] = ("free", "contiguous")


def problem(
    loads: Sequence[float],
    devices: Sequence[Device] | int,
    mode: PlacementMode = "free",
    memory_mib: Sequence[float] | None = None,
) -> PlacementProblem:
    sizes = memory_mib or [0.0] * len(loads)
    partitions = [Partition(name=f"p{i}", load=loads[i], memory_mib=sizes[i]) for i in range(len(loads))]
    equal = (Device(),) * devices if isinstance(devices, int) else devices
    return PlacementProblem(partitions=tuple(partitions), devices=tuple(equal), mode=mode)


@pytest.mark.parametrize(
    ("mode", "num_devices", "expected"),
    [
        ("free", 2, 6.490), ("free", 3, 4.417), *(("free", number, 3.567) for number in range(4, 9)),
        ("contiguous", 2, 7.357), ("contiguous", 3, 4.921), ("contiguous", 4, 3.790),
        *(("contiguous", number, 3.567) for number in range(5, 9)),
    ],
)  # fmt: skip
def test_reference_loads(mode: PlacementMode, num_devices: int, expected: float) -> None:
    for fitness in FITNESSES[1:]:
        placement = place(problem(RESNET18_GMAC, num_devices, mode), fitness=fitness)
        assert placement.makespan == pytest.approx(expected, abs=5e-4)
        assert placement.bound == pytest.approx(max(sum(RESNET18_GMAC) / num_devices, 3.567))


def test_profit_is_equal_for_all_placements_on_equal_devices_and_the_makespan_ranks_them() -> None:
    equal = problem(RESNET18_GMAC, [Device(speed=2.0)] * 3)
    rng = Random(0)
    assignments = [tuple(rng.randrange(3) for _ in RESNET18_GMAC) for _ in range(200)]
    assert {profit(equal, assignment) for assignment in assignments} == {math.fsum(RESNET18_GMAC) / 2}
    assert len({makespan(equal, assignment) for assignment in assignments}) > 50


def test_profit_prefers_the_smallest_device() -> None:
    """PAPERS.md 5.7: on capacities 7, 7, 4 the profit fills the smallest device; the best makespan is 73 % of a device."""
    devices = [Device(speed=capacity, memory_mib=capacity) for capacity in (7.0, 7.0, 4.0)]
    unequal = problem(RESNET18_GMAC, devices, memory_mib=RESNET18_GMAC)
    assert place(unequal, fitness="profit").device_loads[2] / 4 == pytest.approx(0.991, abs=5e-4)
    assert place(unequal, fitness="makespan").makespan == pytest.approx(0.734, abs=5e-4)


def random_problem(seed: int, mode: PlacementMode, most_partitions: int) -> PlacementProblem:
    """Return 2 to 10 partitions on 1 to 3 devices; equal ones, unequal ones, and some with little memory, in turn."""
    rng = Random(seed)
    num_partitions = rng.randint(2, most_partitions)
    num_devices = rng.randint(1, min(3, num_partitions))
    loads = [rng.uniform(0.01, 4.0) for _ in range(num_partitions)]
    speeds = [1.0 if seed % 3 == 0 else rng.uniform(0.5, 2.0) for _ in range(num_devices)]
    sizes = [rng.uniform(1.0, 4.0) for _ in range(num_partitions)]
    memory = max(sum(sizes) / num_devices, max(sizes)) * 1.6 if seed % 3 == 2 else None
    devices = [Device(speed=speed, memory_mib=memory) for speed in speeds]
    return problem(loads, devices, mode, memory_mib=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("fitness", FITNESSES)
@pytest.mark.parametrize("mode", MODES)
def test_gabra_equals_brute_force_in_at_least_95_of_100_seeds(mode: PlacementMode, fitness: PlacementFitness) -> None:
    num_equal = 0
    for seed in range(100):
        case = random_problem(seed, mode, most_partitions=10 if seed % 10 == 0 else 8)
        reached = fitness_of(case, place(case, fitness=fitness, seed=seed).assignment, fitness)
        num_equal += reached == fitness_of(case, optimal_assignment(case, fitness), fitness)
    assert num_equal >= 95


@pytest.mark.slow
@pytest.mark.parametrize("fitness", FITNESSES)
@pytest.mark.parametrize("mode", MODES)
def test_gabra_equals_brute_force_with_ten_partitions_on_three_unequal_devices(
    mode: PlacementMode, fitness: PlacementFitness
) -> None:
    """One problem with 59,049 assignments. With 100 seeds, at least 95 reached the best fitness in each case; 20 take a fifth."""
    rng = Random(10)
    case = problem([rng.random() for _ in range(10)], [Device(speed=speed) for speed in (1.0, 1.7, 0.6)], mode)
    best = fitness_of(case, optimal_assignment(case, fitness), fitness)
    reached = [fitness_of(case, place(case, fitness=fitness, seed=seed).assignment, fitness) for seed in range(20)]
    assert reached.count(best) >= 19


@pytest.mark.parametrize("fitness", FITNESSES)
@pytest.mark.parametrize("mode", MODES)
def test_the_best_fitness_never_falls_and_equal_seeds_give_equal_placements(
    mode: PlacementMode, fitness: PlacementFitness
) -> None:
    case = random_problem(7, mode, most_partitions=10)
    placement = place(case, fitness=fitness, seed=3, unit="GMAC")
    assert list(placement.best_fitness) == sorted(placement.best_fitness)
    assert placement.best_fitness[-1] == fitness_of(case, placement.assignment, fitness)
    assert placement == place(case, fitness=fitness, seed=3, unit="GMAC")
    assert (placement.mode, placement.fitness, placement.seed, placement.unit) == (mode, fitness, 3, "GMAC")


POSITIVE = st.floats(0.01, 100)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), mode=st.sampled_from(MODES), fitness=st.sampled_from(FITNESSES), seed=st.integers(0, 2**32))
def test_placements_are_feasible(data: Any, mode: PlacementMode, fitness: PlacementFitness, seed: int) -> None:
    num_partitions = data.draw(st.integers(1, 8))
    num_devices = data.draw(st.integers(1, min(4, num_partitions)))
    sizes = data.draw(st.lists(POSITIVE, min_size=num_partitions, max_size=num_partitions))
    loads = data.draw(st.lists(st.floats(0, 100), min_size=num_partitions, max_size=num_partitions))
    memory = st.one_of(st.none(), st.floats(0.7 * sum(sizes), 2 * sum(sizes)))
    devices = [Device(speed=data.draw(POSITIVE), memory_mib=data.draw(memory)) for _ in range(num_devices)]
    try:
        case = problem(loads, devices, mode, memory_mib=sizes)
        placement = place(case, fitness=fitness, seed=seed)
    except UserInputError as error:
        event(error.what.split("'")[-1])
        assume(False)
    assert len(placement.assignment) == num_partitions
    assert set(placement.assignment) == set(range(num_devices))
    assert case.is_feasible(placement.assignment)
    assert placement.bound <= placement.makespan * (1 + 1e-9)
    assert sum(placement.device_loads) == pytest.approx(sum(loads))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), mode=st.sampled_from(MODES))
def test_limited_memory_for_which_a_placement_exists_is_used(seed: int, mode: PlacementMode) -> None:
    """The memory of each device is 5 % more than one feasible assignment needs."""
    rng = Random(seed)
    sizes = [rng.uniform(1, 4) for _ in range(8)]
    groups = [0, 0, 0, 1, 1, 1, 2, 2] if mode == "contiguous" else rng.sample([0, 0, 0, 1, 1, 1, 2, 2], 8)
    memory = [1.05 * sum(size for size, group in zip(sizes, groups, strict=True) if group == g) for g in range(3)]
    case = problem(sizes, [Device(memory_mib=mib) for mib in memory], mode, memory_mib=sizes)
    assert case.is_feasible(place(case, fitness="makespan", seed=seed).assignment)


@pytest.mark.parametrize(
    ("loads", "devices", "memory_mib", "words"),
    [
        ([1.0, 2.0], 3, None, "more stages than partitions"),
        ([1.0, 2.0], 0, None, "no device"),
        ([1.0, 2.0], [Device(memory_mib=4.0)] * 2, [1.0, 5.0], "'p1' is larger than the memory of every device"),
        ([1.0, math.nan], 2, None, "load nan"),
        ([1.0, -0.5], 2, None, "load -0.5"),
        ([1.0, math.inf], 2, None, "load inf"),
        ([1.0, 2.0], 2, [1.0, math.nan], "memory_mib nan"),
        ([1.0, 2.0], [Device(), Device(speed=0.0)], None, "speed 0.0"),
        ([1.0, 1.0, 1.0], [Device(memory_mib=4.0)] * 2, [3.0, 3.0, 3.0], "do not fit into the memory"),
    ],
)
def test_bad_input(loads: Any, devices: Any, memory_mib: Any, words: str) -> None:
    for mode in MODES:
        with pytest.raises(UserInputError) as message:
            place(problem(loads, devices, mode, memory_mib=memory_mib))
        assert words in str(message.value)
        assert message.value.seen or words == "no device"
        assert message.value.expected
        assert message.value.do


def test_operators() -> None:
    rng = Random(0)
    first, second = (0,) * 6, (1,) * 6
    children = [crossover(first, second, rng) for _ in range(10_000)]
    assert sum(child != first for child in children) / len(children) == pytest.approx(CROSSOVER_PROBABILITY, abs=0.02)
    assert all(child == tuple(sorted(child)) for child in children)
    genes = (0, 1, 2, 3, 4, 5, 6, 7)
    mutants = [invert(genes, rng) for _ in range(10_000)]
    assert sum(mutant != genes for mutant in mutants) / len(mutants) == pytest.approx(0.2, abs=0.02)
    lengths = {sum(one != other for one, other in zip(genes, mutant, strict=True)) for mutant in mutants}
    assert lengths == {0, 2, 4}  # the middle of three reversed genes stays
    population = [((1.0,), (0,)), ((2.0,), (1,))]
    assert sum(select(population, rng) == (1,) for _ in range(1000)) / 1000 == pytest.approx(0.75, abs=0.05)
