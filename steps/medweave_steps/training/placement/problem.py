"""Partitions, devices and limits of a placement. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from medweave_core.contracts.placement import Device, Partition, PlacementMode
from medweave_core.errors import UserInputError

Assignment = tuple[int, ...]
"""For each partition the number of its device, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """What is placed, and where.

    A feasible assignment gives every device at least one partition and no more memory than it has. In the mode `contiguous` the
    partitions of each device follow one another; which device computes the first ones is open.

    Attributes:
        partitions: in the order in which they run.
        devices: at most as many as partitions.
        mode: contiguous or free.
    Raises:
        UserInputError: there are more devices than partitions or no devices; a load, speed or memory is not a number or has the
            wrong sign; or a partition fits no device.
    Source: Akintoye et al. 2021, equations 6 to 8. There one number per device is both speed and capacity; here the speed divides
        loads, and the memory is the capacity.
    """

    partitions: tuple[Partition, ...]
    devices: tuple[Device, ...]
    mode: PlacementMode

    def __post_init__(self) -> None:
        _check_numbers(self.partitions, self.devices)
        if not 1 <= len(self.devices) <= len(self.partitions):
            raise UserInputError(
                "there are more stages than partitions." if self.devices else "there is no device.",
                seen=f"{len(self.devices)} devices, {len(self.partitions)} partitions",
                expected="1 or more devices, and at least one partition for each",
                do="reduce --devices, or divide the network into more partitions",
            )
        _check_capacities(self.partitions, self.devices)

    @property
    def bound(self) -> float:
        """Lower bound of the makespan: total load over total speed, or the largest load over the highest speed."""
        loads, speeds = [part.load for part in self.partitions], [device.speed for device in self.devices]
        return max(math.fsum(loads) / math.fsum(speeds), max(loads) / max(speeds))

    @property
    def has_limits(self) -> bool:
        """Whether a device has less memory than all partitions need together."""
        total = math.fsum(part.memory_mib for part in self.partitions)
        return any(device.memory_mib is not None and device.memory_mib < total for device in self.devices)

    def fits(self, device: int, partitions: Sequence[int]) -> bool:
        """Return True if a device has the memory for these partitions."""
        capacity = self.devices[device].memory_mib
        return capacity is None or math.fsum(self.partitions[part].memory_mib for part in partitions) <= capacity

    def is_feasible(self, assignment: Assignment) -> bool:
        """Return True if the assignment is within the limits."""
        groups = groups_of(assignment, len(self.devices))
        if not all(group and self.fits(device, group) for device, group in enumerate(groups)):
            return False
        return self.mode == "free" or cut_edges(assignment) == len(self.devices) - 1


def groups_of(assignment: Assignment, num_devices: int) -> list[list[int]]:
    """Return the numbers of the partitions of each device, in ascending order."""
    groups: list[list[int]] = [[] for _ in range(num_devices)]
    for part, device in enumerate(assignment):
        groups[device].append(part)
    return groups


def cut_edges(assignment: Assignment) -> int:
    """Return the number of neighboring partitions on different devices."""
    return sum(one != other for one, other in itertools.pairwise(assignment))


def _check_numbers(partitions: Sequence[Partition], devices: Sequence[Device]) -> None:
    for part in partitions:
        for name, value in (("load", part.load), ("memory_mib", part.memory_mib)):
            if not 0 <= value < math.inf:
                raise UserInputError(
                    f"the partition '{part.name}' cannot be placed.",
                    seen=f"{name} {value}",
                    expected="a finite number, 0 or more",
                    do="measure the partition again, or correct the file of loads",
                )
    for number, device in enumerate(devices):
        for name, quantity in (("speed", device.speed), ("memory_mib", device.memory_mib)):
            if quantity is not None and not 0 < quantity < math.inf:
                raise UserInputError(
                    f"the device {number} cannot be used.",
                    seen=f"{name} {quantity}",
                    expected="a finite number, more than 0",
                    do=f"correct {'--speeds' if name == 'speed' else '--memory-mib'}",
                )


def _check_capacities(partitions: Sequence[Partition], devices: Sequence[Device]) -> None:
    largest = max(partitions, key=lambda part: part.memory_mib)
    most = max(math.inf if device.memory_mib is None else device.memory_mib for device in devices)
    if largest.memory_mib > most:
        raise UserInputError(
            f"the partition '{largest.name}' is larger than the memory of every device.",
            seen=f"{largest.memory_mib:g} MiB; the largest device has {most:g} MiB",
            expected="a device with the memory for each partition",
            do="use devices with more memory, smaller patches, or divide the partition",
        )
