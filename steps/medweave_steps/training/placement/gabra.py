"""GABRA, a steady-state genetic algorithm that places partitions on devices; and brute force for small cases. Pure.

Source: Akintoye et al. 2021, algorithm 1. Its population, number of generations, mutation probability and limits are not printed;
they are choices of medweave. Another choice is the improvement by single moves and swaps until none helps: of the first population,
of one child in five, and of each new best. The printed operators alone find the optimum of 10 random loads on 3 devices (makespan)
in 5 to 85 % of the seeds (8 cases with 20 seeds each).
"""

from __future__ import annotations

import itertools
from random import Random

from medweave_core.contracts.placement import Device, Placement, PlacementFitness
from medweave_core.errors import UserInputError
from medweave_steps.training.placement.encodings import encoding_of
from medweave_steps.training.placement.fitness import (
    Fitness,
    device_loads,
    fitness_bound,
    fitness_of,
    makespan,
    profit,
)
from medweave_steps.training.placement.operators import Genes, Member, crossover, invert, select
from medweave_steps.training.placement.problem import Assignment, PlacementProblem, cut_edges

POPULATION = 50
GENERATIONS = 1000
MAX_DISCARDED = 100
"""Infeasible or repeated children in a row, after which the search ends."""
IMPROVED_SHARE = 0.2
"""Fraction of the children that are improved by moves and swaps."""
MAX_FIRST_TRIES = 10_000
"""Random assignments that are tried until the first feasible one."""


def place(
    problem: PlacementProblem, *, fitness: PlacementFitness = "profit+makespan", seed: int = 0, unit: str = ""
) -> Placement:
    """Return the fittest placement that GABRA finds.

    Args:
        fitness: see `fitness_of`.
        seed: equal seeds give equal placements.
        unit: of the loads.
    Raises:
        UserInputError: no feasible assignment was found.
    """
    found, history = _Search(problem, fitness, Random(seed)).run()
    assignment = _in_order(problem, found)
    return Placement(
        mode=problem.mode, fitness=fitness, seed=seed, unit=unit, partitions=problem.partitions, devices=problem.devices,
        assignment=assignment, device_loads=device_loads(problem, assignment), makespan=makespan(problem, assignment),
        profit=profit(problem, assignment), bound=problem.bound, cut_edges=cut_edges(assignment), best_fitness=tuple(history),
    )  # fmt: skip


def optimal_assignment(problem: PlacementProblem, fitness: PlacementFitness) -> Assignment:
    """Return the first assignment with the highest fitness, by brute force over all devices ** partitions assignments.

    Raises:
        UserInputError: there is no feasible assignment.
    """
    assignments = itertools.product(range(len(problem.devices)), repeat=len(problem.partitions))
    feasible = filter(problem.is_feasible, assignments)
    best = max(feasible, key=lambda assignment: fitness_of(problem, assignment, fitness), default=None)
    if best is None:
        raise _infeasible(problem, "no assignment has the memory")
    return best


class _Search:
    """The population of one search: different feasible genes with their fitness."""

    def __init__(self, problem: PlacementProblem, fitness: PlacementFitness, rng: Random) -> None:
        self.problem, self.fitness, self.rng = problem, fitness, rng
        self.encoding = encoding_of(problem)
        self.bound = fitness_bound(problem, fitness)
        self.computed: dict[Genes, Fitness] = {}
        self.population = [(self._fitness_of(genes), genes) for genes in self._first()]

    def run(self) -> tuple[Assignment, list[Fitness]]:
        """Return the fittest assignment, and the highest fitness up to each generation."""
        best = max(self._improved(genes) for _, genes in self.population)
        if best not in self.population:
            self._replace_worst(best)
        history, num_discarded = [best[0]], 0
        while len(history) <= GENERATIONS and num_discarded < MAX_DISCARDED and not self._is_optimal(best[0]):
            child = self._child(best[0])
            if child is None or child in self.population:
                num_discarded += 1
                continue
            best = max(best, child, key=lambda member: member[0])
            self._replace_worst(child)
            history.append(best[0])
            num_discarded = 0
        return self.encoding.assignment(best[1]), history

    def _first(self) -> list[Genes]:
        """Return different random feasible genes; fewer than the population where the problem has few of them.

        Raises:
            UserInputError: none was found.
        """
        first: dict[Genes, None] = {}
        num_discarded = 0
        while len(first) < POPULATION and num_discarded < (MAX_DISCARDED if first else MAX_FIRST_TRIES):
            genes = self.encoding.repair(self.encoding.random(self.rng), self.rng)
            num_discarded = num_discarded + 1 if genes is None or genes in first else 0
            if genes is not None:
                first[genes] = None
        if not first:
            raise _infeasible(self.problem, f"none of {MAX_FIRST_TRIES} random placements fits")
        return list(first)

    def _replace_worst(self, member: Member) -> None:
        self.population.remove(min(self.population, key=lambda member: member[0]))
        self.population.append(member)

    def _child(self, best: Fitness) -> Member | None:
        """Return a new child, None if its repair fails; improved if it is above the best fitness, and one in five of the others."""
        parents = (select(self.population, self.rng), select(self.population, self.rng))
        genes = self.encoding.repair(invert(crossover(*parents, self.rng), self.rng), self.rng)
        if genes is None:
            return None
        fitness = self._fitness_of(genes)
        is_improved = fitness > best or self.rng.random() < IMPROVED_SHARE
        return self._improved(genes) if is_improved else (fitness, genes)

    def _improved(self, genes: Genes) -> Member:
        """Return the local optimum that is reached from feasible genes by neighbors of higher fitness."""
        best = (self._fitness_of(genes), genes)
        while True:
            before = best
            for neighbor in self.encoding.neighbors(best[1]):
                value = self._fitness_of(neighbor)
                if value > best[0] and self.problem.is_feasible(self.encoding.assignment(neighbor)):
                    best = (value, neighbor)
            if best is before:
                return best

    def _fitness_of(self, genes: Genes) -> Fitness:
        if genes not in self.computed:
            self.computed[genes] = fitness_of(self.problem, self.encoding.assignment(genes), self.fitness)
        return self.computed[genes]

    def _is_optimal(self, fitness: Fitness) -> bool:
        return all(value >= most for value, most in zip(fitness, self.bound, strict=True))


def _in_order(problem: PlacementProblem, assignment: Assignment) -> Assignment:
    """Return the assignment with equal devices numbered in the order in which they run."""
    numbers: dict[Device, list[int]] = {}
    for number, device in enumerate(problem.devices):
        numbers.setdefault(device, []).append(number)
    renamed = {device: numbers[problem.devices[device]].pop(0) for device in dict.fromkeys(assignment)}
    return tuple(renamed[device] for device in assignment)


def _infeasible(problem: PlacementProblem, seen: str) -> UserInputError:
    needed = sum(part.memory_mib for part in problem.partitions)
    return UserInputError(
        "the partitions do not fit into the memory of the devices.",
        seen=f"{seen}: {needed:g} MiB in {len(problem.partitions)} partitions",
        expected="a placement in which every device has the memory for its partitions, and at least one partition",
        do="use more devices or devices with more memory, or smaller patches",
    )
