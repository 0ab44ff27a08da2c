"""The fitness of an assignment: profit, makespan, or both. Pure."""

from __future__ import annotations

import math

from medweave_core.contracts.placement import PlacementFitness
from medweave_steps.training.placement.problem import Assignment, PlacementProblem, cut_edges

Fitness = tuple[float, ...]
"""Numbers that are compared one after the other; higher is better."""


def device_loads(problem: PlacementProblem, assignment: Assignment) -> tuple[float, ...]:
    """Return the sum of the loads of each device, in their unit."""
    loads: list[list[float]] = [[] for _ in problem.devices]
    for part, device in zip(problem.partitions, assignment, strict=True):
        loads[device].append(part.load)
    return tuple(map(math.fsum, loads))


def makespan(problem: PlacementProblem, assignment: Assignment) -> float:
    """Return the largest sum of loads of a device divided by its speed."""
    loads = device_loads(problem, assignment)
    return max(load / device.speed for load, device in zip(loads, problem.devices, strict=True))


def profit(problem: PlacementProblem, assignment: Assignment) -> float:
    """Return the sum of load over speed of the device, for all partitions.

    On devices of equal speed all assignments have the same profit. On others it is highest for the slowest devices.

    Source: Akintoye et al. 2021, equation 5.
    """
    pairs = zip(problem.partitions, assignment, strict=True)
    return math.fsum(part.load / problem.devices[device].speed for part, device in pairs)


def fitness_of(problem: PlacementProblem, assignment: Assignment, fitness: PlacementFitness) -> Fitness:
    """Return the fitness of an assignment.

    Args:
        fitness: profit, as the paper has it; makespan; or profit, of equal ones the smallest makespan, and of these the fewest
            edges between devices.
    """
    if fitness == "profit":
        return (profit(problem, assignment),)
    if fitness == "makespan":
        return (-makespan(problem, assignment),)
    return profit(problem, assignment), -makespan(problem, assignment), -float(cut_edges(assignment))


def fitness_bound(problem: PlacementProblem, fitness: PlacementFitness) -> Fitness:
    """Return an upper bound of each number of the fitness; an assignment that reaches all of them is optimal."""
    slowest = min(device.speed for device in problem.devices)
    most = math.fsum(part.load / slowest for part in problem.partitions)
    bound = (most, -problem.bound, -float(len(problem.devices) - 1))
    return {"profit": bound[:1], "makespan": bound[1:2], "profit+makespan": bound}[fitness]
