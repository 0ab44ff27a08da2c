"""The options of `place-layers`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts.placement import Device, PlacementFitness, PlacementMode
from medweave_steps.networks import LAYER_STACK_NAME, NetworkOptions, is_user_class, network_names, network_type
from medweave_steps.networks import OPTIONS as NETWORK_OPTIONS
from medweave_steps.runtime.options import check_option, option, variant_options
from medweave_steps.training.placement.loads import Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceLayersConfig:
    """Options of `place-layers`."""

    @staticmethod
    def defaults_for(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that differ from those of the fields: a file of layers selects its network."""
        return {"network": LAYER_STACK_NAME} if values.get("network_file") else {}

    devices: int | None = option("number of devices (default: that of --speeds or --memory-mib)", default=None)
    speeds: tuple[float, ...] = option(
        "speed of each device, relative to that of a device of speed 1 (default: equal devices)",
        default=(),
        metavar="X",
    )
    memory_mib: tuple[float, ...] = option(
        "memory of each device, MiB, or one value for all (default: not limited)", default=(), metavar="MIB"
    )
    loads: Path | None = option(
        "YAML or JSON file of loads to place, instead of measuring a network (schema: `medweave schema partition-loads`)",
        default=None,
    )
    network: str = option("network to measure, as in train", default="unet", choices=network_names)
    network_file: Path | None = option("YAML file of a layer stack, as in train", default=None)
    network_code: Path | None = option("Python file with the class of --network NAME:Class, as in train", default=None)
    allow_code: bool = option(
        "run the code of --network module:Class, which is not part of medweave, with your rights", default=False
    )
    channels: tuple[int, ...] = option("channels per level, as in train", default=(8, 16, 32, 64, 128), metavar="N")
    strides: tuple[int, ...] = option("stride between two levels, as in train", default=(1, 2, 2, 2), metavar="N")
    residual_units: int = option("residual units per level, as in train", default=0)
    norm: Literal["batch", "group", "instance"] = option("normalization layers, as in train", default="batch")
    network_options: NetworkOptions = variant_options(NETWORK_OPTIONS, default=NetworkOptions())
    input_channels: int = option("channels of the network's input", default=1)
    patch_shape: tuple[int, int, int] = option(
        "size of the network's input along I J K, in voxels; K is 1 for images", default=(32, 32, 32), metavar="I J K"
    )
    batch_size: int = option("patches or images that are computed together; loads and memory grow with it", default=1)
    measure: Measure = option(
        "measured quantity that is the load: gmac (billions of multiply-adds of one forward pass) or seconds (of one forward "
        "pass on this machine)",
        default="gmac",
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto measures on a GPU if available", default="auto")
    mode: PlacementMode = option(
        "contiguous gives each device consecutive partitions, as pipeline stages need them; free any partitions",
        default="contiguous",
    )
    fitness: PlacementFitness = option(
        "profit is the sum of load over speed of the device, as in the paper: equal for all placements on equal devices, and "
        "highest on the slowest ones; makespan is the largest load over speed of a device; profit+makespan compares profit, then "
        "makespan, then the number of edges between devices",
        default="profit+makespan",
    )
    seed: int = option("random seed of the genetic algorithm", default=0)
    output: Path = option("JSON file to write: loads, placement and bound", default=Path("placement.json"))

    def __post_init__(self) -> None:
        self._check_devices()
        check_option(self.seed >= 0, "seed", self.seed, "0 or more")
        if self.loads is None:
            self._check_network()

    def _check_devices(self) -> None:
        devices, number = self.devices, self.num_devices
        expected = "at least 1, or one value for each device in --speeds or --memory-mib"
        check_option(number >= 1, "devices", "no value" if devices is None else devices, expected)
        for name in ("speeds", "memory_mib"):
            values = getattr(self, name)
            check_option(all(0 < value < math.inf for value in values), name, values, "numbers above 0")
        check_option(len(self.speeds) in (0, number), "speeds", self.speeds, f"{number} values, one for each device")
        expected = f"one value, or {number}, one for each device"
        check_option(len(self.memory_mib) in (0, 1, number), "memory_mib", self.memory_mib, expected)

    def _check_network(self) -> None:
        for name in ("input_channels", "batch_size"):
            check_option(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        check_option(self.residual_units >= 0, "residual_units", self.residual_units, "0 or more")
        channels, levels = self.channels, len(self.channels) - 1
        check_option(levels >= 1 and min(channels) >= 1, "channels", channels, "two or more, each >= 1")
        fits = len(self.strides) == levels and min(self.strides) >= 1
        check_option(fits, "strides", self.strides, f"{levels} numbers, one less than --channels, each >= 1")
        fits = self.network_file is None or self.network == LAYER_STACK_NAME
        expected = f"no value: it applies only to --network {LAYER_STACK_NAME}"
        check_option(fits, "network_file", self.network_file, expected)
        fits = self.network_code is None or is_user_class(self.network)
        check_option(fits, "network_code", self.network_code, "no value: it applies only to --network module:Class")
        check_option(min(self.patch_shape) >= 1, "patch_shape", self.patch_shape, "numbers of voxels, each >= 1")
        network = network_type(self.network)
        network.check(self)
        multiple = network.patch_multiple(self)
        fits = not any(side % multiple for side in self.patch_shape)
        check_option(fits, "patch_shape", self.patch_shape, f"multiples of {multiple}, as --network needs them")

    @property
    def window_shape(self) -> tuple[int, int, int]:
        """The shape of the input, which networks check."""
        return self.patch_shape

    @property
    def num_devices(self) -> int:
        """The number of devices, 0 if no option has it."""
        return self.devices if self.devices is not None else max(len(self.speeds), len(self.memory_mib))

    def all_devices(self) -> tuple[Device, ...]:
        """Return the devices; speed 1 and no limit of memory where no option has them."""
        number = self.num_devices
        speeds = self.speeds or (1.0,) * number
        memory = self.memory_mib if len(self.memory_mib) == number else (self.memory_mib or (None,)) * number
        return tuple(Device(speed=speed, memory_mib=mib) for speed, mib in zip(speeds, memory, strict=True))
