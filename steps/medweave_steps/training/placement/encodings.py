"""The genes of an assignment in both modes: how they are drawn, repaired, changed and decoded. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Protocol

from medweave_steps.training.placement.operators import Genes, changes, swaps
from medweave_steps.training.placement.problem import Assignment, PlacementProblem, groups_of


class Encoding(Protocol):
    """The genes of one mode."""

    def random(self, rng: Random) -> Genes:
        """Return random genes, which may be infeasible."""

    def repair(self, genes: Genes, rng: Random) -> Genes | None:
        """Return feasible genes close to these, None if the repair fails."""

    def assignment(self, genes: Genes) -> Assignment:
        """Return the device of each partition."""

    def neighbors(self, genes: Genes) -> Iterator[Genes]:
        """Yield genes that differ in one or two places, which may be infeasible."""


class FreeEncoding:
    """Gene i is the device of partition i, from 0."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem

    def random(self, rng: Random) -> Genes:
        """Return a random device for each partition."""
        return tuple(rng.randrange(len(self.problem.devices)) for _ in self.problem.partitions)

    def assignment(self, genes: Genes) -> Assignment:
        """Return the genes."""
        return genes

    def neighbors(self, genes: Genes) -> Iterator[Genes]:
        """Yield all placements with one partition moved, or two exchanged."""
        yield from changes(genes, len(self.problem.devices))
        yield from swaps(genes)

    def repair(self, genes: Genes, rng: Random) -> Genes | None:
        """Move the smallest partitions away from devices without the memory, then one partition to each empty device."""
        groups = groups_of(genes, len(self.problem.devices))
        if not (self._unload(groups, rng) and self._fill(groups, rng)):
            return None
        device_of = {part: device for device, group in enumerate(groups) for part in group}
        return tuple(device_of[part] for part in range(len(genes)))

    def _unload(self, groups: list[list[int]], rng: Random) -> bool:
        for device, group in enumerate(groups):
            sizes = {part: self.problem.partitions[part].memory_mib for part in group}
            for part in sorted((part for part in group if sizes[part] > 0), key=sizes.__getitem__):
                if self.problem.fits(device, group):
                    break
                others = [
                    other
                    for other, parts in enumerate(groups)
                    if other != device and self.problem.fits(other, [*parts, part])
                ]
                if not others:
                    return False
                group.remove(part)
                groups[rng.choice(others)].append(part)
        return True

    def _fill(self, groups: list[list[int]], rng: Random) -> bool:
        for device, group in enumerate(groups):
            if group:
                continue
            movable = [
                (donor, part)
                for donor in groups
                if len(donor) > 1
                for part in donor
                if self.problem.fits(device, [part])
            ]
            if not movable:
                return False
            donor, part = rng.choice(movable)
            donor.remove(part)
            group.append(part)
        return True


class ContiguousEncoding:
    """Gene i is 1 + the device whose partitions begin with partition i, and 0 where none begins; each device begins once."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        num_parts, num_devices = len(problem.partitions), len(problem.devices)
        self._furthest = [[self._end(device, start) for start in range(num_parts)] for device in range(num_devices)]

    def _end(self, device: int, start: int) -> int:
        """Return one more than the last partition that a device has the memory for, if its partitions begin with `start`."""
        ends = range(start + 1, len(self.problem.partitions) + 1)
        return max((end for end in ends if self.problem.fits(device, range(start, end))), default=start)

    def random(self, rng: Random) -> Genes:
        """Return devices in a random order, which begin at random partitions."""
        num_parts, num_devices = len(self.problem.partitions), len(self.problem.devices)
        starts = [0, *sorted(rng.sample(range(1, num_parts), num_devices - 1))]
        return self._genes(starts, rng.sample(range(num_devices), num_devices))

    def assignment(self, genes: Genes) -> Assignment:
        """Return for each partition the device that began last."""
        devices: list[int] = []
        for gene in genes:
            devices.append(gene - 1 if gene else devices[-1])
        return tuple(devices)

    def neighbors(self, genes: Genes) -> Iterator[Genes]:
        """Yield all placements with one begin moved, or two devices exchanged."""
        return (neighbor for neighbor in swaps(genes) if neighbor[0])

    def repair(self, genes: Genes, rng: Random) -> Genes | None:
        """Let each device begin once, the first one at partition 0, then move the begins to where the memory suffices."""
        start_of: dict[int, int] = {}
        for part, gene in enumerate(genes):
            if gene:
                start_of.setdefault(gene - 1, part if start_of else 0)
        missing = [device for device in range(len(self.problem.devices)) if device not in start_of]
        taken = {0, *start_of.values()}
        free = [part for part in range(len(genes)) if part not in taken]
        first = [] if start_of else [0]
        starts = first + rng.sample(free, len(missing) - len(first))
        start_of |= zip(rng.sample(missing, len(missing)), starts, strict=True)
        order = sorted(start_of, key=start_of.__getitem__)
        moved = self._within_memory([start_of[device] for device in order], order)
        return None if moved is None else self._genes(moved, order)

    def _within_memory(self, starts: Sequence[int], order: Sequence[int]) -> list[int] | None:
        """Return starts for which every device has the memory, each as close as possible; None if this order has none."""
        if not self.problem.has_limits:
            return list(starts)
        num_parts = len(self.problem.partitions)
        nothing: list[int] = []
        ends_of = {len(order): {num_parts: nothing}}  # for each stage and each feasible start the feasible ends
        for stage in reversed(range(len(order))):
            furthest, after = self._furthest[order[stage]], ends_of[stage + 1]
            ends = {start: [e for e in after if start < e <= furthest[start]] for start in range(num_parts)}
            ends_of[stage] = {start: feasible for start, feasible in ends.items() if feasible}
        if 0 not in ends_of[0]:
            return None
        moved = [0]
        for stage, near in enumerate(starts[1:]):
            moved.append(min(ends_of[stage][moved[-1]], key=lambda end: abs(end - near)))
        return moved

    def _genes(self, starts: Sequence[int], order: Sequence[int]) -> Genes:
        genes = [0] * len(self.problem.partitions)
        for start, device in zip(starts, order, strict=True):
            genes[start] = device + 1
        return tuple(genes)


def encoding_of(problem: PlacementProblem) -> Encoding:
    """Return the encoding of the problem's mode."""
    return FreeEncoding(problem) if problem.mode == "free" else ContiguousEncoding(problem)
