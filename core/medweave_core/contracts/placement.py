"""The files of `place-layers`: the loads of a network's partitions, and their placement on devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

PlacementMode = Literal["contiguous", "free"]
PlacementFitness = Literal["profit", "makespan", "profit+makespan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Consecutive layers of a network, which one device computes.

    Attributes:
        name: of the layers.
        load: what the devices share, in the unit of the file, 0 or more.
        memory_mib: memory of the partition in training, MiB; 0 if unknown.
        parameters: number of weights and biases; null if not measured.
        gmac: multiply-adds of one forward pass of the example, in billions; null if not measured.
        seconds: of one forward pass of the example, s; null if not measured.
    """

    name: str
    load: float
    memory_mib: float = 0.0
    parameters: int | None = None
    gmac: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoads:
    """Partitions of a network in the order in which they run.

    Attributes:
        partitions: of the network.
        unit: of the loads, such as GMAC or s.
    """

    partitions: tuple[Partition, ...]
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that computes partitions.

    Attributes:
        speed: relative to a device of speed 1, above 0.
        memory_mib: capacity, MiB; null if it is not limited.
    """

    speed: float = 1.0
    memory_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A placement of partitions on devices.

    Attributes:
        mode: contiguous (each device computes consecutive partitions) or free.
        fitness: what was maximized.
        seed: of the genetic algorithm.
        unit: of the loads.
        partitions: in the order in which they run.
        devices: that compute them.
        assignment: for each partition the number of its device, from 0.
        device_loads: for each device the sum of its loads, in their unit.
        makespan: largest sum of loads of a device divided by its speed.
        profit: sum over the partitions of load divided by speed of the device.
        bound: no placement has a smaller makespan: total load over total speed, or the largest load over the highest speed.
        cut_edges: number of neighboring partitions on different devices.
        best_fitness: highest fitness up to each generation, from the first population on. Fitness is compared number by number:
            profit, minus makespan, minus cut edges, as far as the mode of fitness has them.
    """

    mode: PlacementMode
    fitness: PlacementFitness
    seed: int
    unit: str
    partitions: tuple[Partition, ...]
    devices: tuple[Device, ...]
    assignment: tuple[int, ...]
    device_loads: tuple[float, ...]
    makespan: float
    profit: float
    bound: float
    cut_edges: int
    best_fitness: tuple[tuple[float, ...], ...]

    @property
    def load(self) -> float:
        """Total load of the partitions, in their unit."""
        return math.fsum(part.load for part in self.partitions)

    @property
    def speed_up_bound(self) -> float:
        """Upper bound of the speed-up of the placement over one device of the highest speed; 1 if there is no load."""
        alone = self.load / max(device.speed for device in self.devices)
        return alone / self.makespan if self.makespan else 1.0
