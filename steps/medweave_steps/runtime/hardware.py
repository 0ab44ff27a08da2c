"""Read the hardware that a process uses: psutil for machine and process, NVML for its GPU, RAPL for energy.

A figure that cannot be read is left out of a reading; it is never 0.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts.energy import CORE_W, MEMORY_W_PER_GB
from medweave_steps.runtime.energy import (
    GPU,
    MEMORY,
    PACKAGE,
    POWERCAP,
    CountedJoules,
    gpu_counters,
    memory_counters,
    package_counters,
)
from medweave_steps.runtime.imports import require

MIB = 2**20
SLOW_EVERY = 10
"""Readings between two of the processors' clock and of the list of child processes, which take longer than all the others."""
MODELLED_PROCESSOR = f"{CORE_W:g} W for each busy core of this training's processes"
MODELLED_MEMORY = f"{MEMORY_W_PER_GB:g} W for each GB of memory of this training's ranks"
GPU_POWER = "NVML's power readings, trapezoid rule"
LOOPBACK = "lo"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySource:
    """The source of the power and energy of one component; its figures are `<component>_power_w` and, if counted, `_energy_j`."""

    component: Literal["processor", "memory", "gpu"]
    kind: Literal["measured", "modelled"]
    source: str


class HardwareReader:
    """Readings of this process, and of its machine and GPU.

    Attributes:
        sources: where the energy of each component comes from; none for a component of which nothing is known.
        missing: reasons why a component is not measured.
    """

    def __init__(
        self, *, gpu_uuid: str | None, counts_machine: bool, powercap: Path = POWERCAP, nvml: Any = None
    ) -> None:
        """Open the sources.

        Args:
            gpu_uuid: of the GPU that this process uses, as torch has it; None without one.
            counts_machine: this process reads what all processes of the machine share: energy, network, disks.
            powercap: /sys/class/powercap, or a folder like it.
            nvml: the library nvidia-ml-py; imported if None.
        """
        self._psutil = require("psutil", extra="train")
        self._process = self._psutil.Process()
        self._children: list[Any] = []
        self._num_readings = 0
        self._last_energy: dict[str, tuple[float, float]] = {}
        self._counts_machine = counts_machine
        self._gpu = _open_gpu(gpu_uuid, nvml) if gpu_uuid else None
        self.sources: list[EnergySource] = []
        self.missing: list[str] = []
        self._counted: dict[str, CountedJoules] = {}
        self._open_energy(powercap, gpu_uuid, nvml)

    def _open_energy(self, powercap: Path, gpu_uuid: str | None, nvml: Any) -> None:
        packages, reason = package_counters(powercap)
        if reason:
            self._add("processor", "modelled", MODELLED_PROCESSOR)
            self.missing += [reason] if self._counts_machine else []
        elif self._counts_machine:
            self._add("processor", "measured", PACKAGE, CountedJoules(packages))
        if not (zones := memory_counters(powercap)):
            self._add("memory", "modelled", MODELLED_MEMORY)
        elif self._counts_machine:
            self._add("memory", "measured", MEMORY, CountedJoules(zones))
        if gpu_uuid is None:
            return
        counters, reason = gpu_counters(gpu_uuid, nvml)
        if counters:
            self._add("gpu", "measured", GPU, CountedJoules(counters))
        elif self._gpu is not None and "gpu_power_w" in self._gpu():
            self._add("gpu", "measured", GPU_POWER)
        else:
            self.missing.append(reason)

    def _add(self, component: Any, kind: Any, source: str, counted: CountedJoules | None = None) -> None:
        self.sources.append(EnergySource(component=component, kind=kind, source=source))
        if counted is not None:
            self._counted[component] = counted

    def read(self, t_s: float) -> dict[str, float]:
        """Return all figures that can be read now; the unit is the end of each name, shares are 0 to 1.

        Args:
            t_s: time of this reading on a clock that never goes back.
        """
        values: dict[str, float] = {}
        parts = [self._read_process, *([self._read_machine] if self._counts_machine else [])]
        for part in parts:
            for read in part():
                with contextlib.suppress(self._psutil.Error, OSError, ValueError, AttributeError):
                    values |= {name: value for name, value in read().items() if value is not None}
        if self._gpu is not None:
            values |= self._gpu()
        values |= self._read_energy(t_s, values)
        self._num_readings += 1
        return values

    def _read_process(self) -> list[Callable[[], Mapping[str, Any]]]:
        process = self._process

        def cpu() -> Mapping[str, float]:
            return {"process_cpu_s": self._cpu_seconds()}

        def memory() -> Mapping[str, float]:
            return {"process_memory_mib": process.memory_info().rss / MIB, "process_threads": process.num_threads()}

        def files() -> Mapping[str, float]:
            counters = process.io_counters()
            return {"process_read_bytes": counters.read_bytes, "process_written_bytes": counters.write_bytes}

        return [cpu, memory, files]

    def _cpu_seconds(self) -> float:
        """Return the processor time of this process and its children, running and ended, s."""
        if self._num_readings % SLOW_EVERY == 0:
            self._children = self._process.children(recursive=True)
        own = self._process.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for child in self._children:
            with contextlib.suppress(self._psutil.Error):
                times = child.cpu_times()
                total += times.user + times.system
        return float(total)

    def _read_machine(self) -> list[Callable[[], Mapping[str, Any]]]:
        psutil = self._psutil

        def load() -> Mapping[str, float]:
            share = psutil.cpu_percent(None) / 100  # since the last call: the first one has no figure
            return {"cpu_utilization": share} if self._num_readings else {}

        def clock() -> Mapping[str, float]:
            if self._num_readings % SLOW_EVERY:
                return {}
            frequency = psutil.cpu_freq()
            return {"cpu_clock_mhz": frequency.current} if frequency and frequency.current else {}

        def memory() -> Mapping[str, float]:
            known = psutil.virtual_memory()
            return {"memory_used_mib": (known.total - known.available) / MIB}

        def network() -> Mapping[str, float]:
            by_name = psutil.net_io_counters(pernic=True)
            loopback = by_name.pop(LOOPBACK, None)
            own = {"loopback_bytes": loopback.bytes_sent} if loopback else {}
            if not by_name:
                return own
            sent, received = zip(*((nic.bytes_sent, nic.bytes_recv) for nic in by_name.values()), strict=True)
            return own | {"network_sent_bytes": sum(sent), "network_received_bytes": sum(received)}

        def disk() -> Mapping[str, float]:
            counters = psutil.disk_io_counters()
            return {"disk_read_bytes": counters.read_bytes, "disk_written_bytes": counters.write_bytes}

        return [load, clock, memory, network, disk]

    def _read_energy(self, t_s: float, values: Mapping[str, float]) -> dict[str, float]:
        """Return energy since the first reading, J, and mean power since the last one, W, where there is a counter or a model."""
        energies: dict[str, float] = {}
        for component, counted in self._counted.items():
            with contextlib.suppress(OSError, ValueError):
                energies[component] = counted.read()
        models = {source.component for source in self.sources if source.kind == "modelled"}
        if "processor" in models and "process_cpu_s" in values:
            energies["processor"] = values["process_cpu_s"] * CORE_W
        figures = {}
        for component, joules in energies.items():
            figures[f"{component}_energy_j"] = joules
            before = self._last_energy.get(component)
            if before is not None and t_s > before[0] and f"{component}_power_w" not in values:
                figures[f"{component}_power_w"] = max(joules - before[1], 0.0) / (t_s - before[0])
            self._last_energy[component] = (t_s, joules)
        if "memory" in models and "process_memory_mib" in values:
            figures["memory_power_w"] = values["process_memory_mib"] * MIB / 1e9 * MEMORY_W_PER_GB
        return figures


def _open_gpu(uuid: str, nvml: Any) -> Callable[[], dict[str, float]] | None:
    """Return a function that reads a GPU; None where NVML does not have it. A figure that NVML refuses is left out."""
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return None

    def load() -> Mapping[str, float]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return {"gpu_utilization": rates.gpu / 100, "gpu_memory_utilization": rates.memory / 100}

    queries: tuple[Callable[[], Mapping[str, float]], ...] = (
        lambda: {"gpu_power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3},
        load,
        lambda: {"gpu_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)},
        lambda: {"gpu_memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)},
        lambda: {"gpu_memory_used_mib": nvml.nvmlDeviceGetMemoryInfo(handle).used / MIB},
        lambda: {"gpu_temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)},
        lambda: {"gpu_performance_state": nvml.nvmlDeviceGetPerformanceState(handle)},
        lambda: {"gpu_pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)},
    )

    def read() -> dict[str, float]:
        values: dict[str, float] = {}
        for query in queries:
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                values |= query()
        return values

    return read
