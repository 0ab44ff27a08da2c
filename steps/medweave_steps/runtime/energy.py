"""The machine's own counters of electricity: RAPL of its processors, and NVML of an NVIDIA GPU."""

from __future__ import annotations

import importlib
import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
PACKAGE, MEMORY, GPU = "RAPL of a processor package", "RAPL of the memory of a package", "NVML of a GPU"
READ_EVERY_S = 30.0
"""A package's counter begins again after 65 to 262 kJ, minutes of a large one: it has to be read more often than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter of energy, which only increases.

    Attributes:
        kind: in words, for reports.
        read: J; raises OSError where it cannot be read.
        begins_again_at: J, after which it counts from 0; infinite where it never does.
    """

    kind: str
    read: Callable[[], float]
    begins_again_at: float = math.inf


def grown(before_j: float, after_j: float, *, begins_again_at: float) -> float:
    """Return the increase between two readings, J; a counter may have wrapped around once between them.

    A counter that does not wrap around and yet decreased was reset: its value is the increase since then.
    """
    if after_j >= before_j:
        return after_j - before_j
    return after_j if math.isinf(begins_again_at) else after_j - before_j + begins_again_at


def package_counters(powercap: Path) -> tuple[list[Counter], str]:
    """Return a counter for each processor package, and in words why there are none.

    Zones below a package (its cores, its memory) and the zone of the platform, which packages are a part of, are left out.

    Args:
        powercap: /sys/class/powercap, or a folder like it.
    Source: Linux, Documentation/power/powercap/powercap.rst.
    """
    try:
        counters = _zones(powercap, r"intel-rapl:\d+", name="package", kind=PACKAGE)
    except PermissionError:
        return [], "RAPL (only root can read the counters of this machine, energy_uj)"
    except (OSError, ValueError):
        return [], "RAPL (the counters of this machine cannot be read)"
    return counters, "" if counters else "RAPL (this machine has no processor energy counter)"


def memory_counters(powercap: Path) -> list[Counter]:
    """Return a counter for the memory of each processor package; none where the machine has none that can be read.

    A zone of memory lies below that of a package, whose counter does not include it.

    Args:
        powercap: /sys/class/powercap, or a folder like it.
    """
    try:
        return _zones(powercap, r"intel-rapl:\d+:\d+", name="dram", kind=MEMORY)
    except (OSError, ValueError):
        return []


def _zones(powercap: Path, pattern: str, *, name: str, kind: str) -> list[Counter]:
    """Return the counters of zones whose folder and title match, each read once.

    Raises:
        OSError, ValueError: one of them cannot be read.
    """
    zones = sorted(path for path in powercap.glob("intel-rapl:*") if re.fullmatch(pattern, path.name))
    counters = [_counter(zone, kind) for zone in zones if (zone / "name").read_text().startswith(name)]
    for counter in counters:
        counter.read()
    return counters


def _counter(zone: Path, kind: str) -> Counter:
    return Counter(
        kind=kind,
        read=lambda: int((zone / "energy_uj").read_text()) / 1e6,
        begins_again_at=int((zone / "max_energy_range_uj").read_text()) / 1e6,
    )


def gpu_counters(uuid: str, nvml: Any = None) -> tuple[list[Counter], str]:
    """Return the counter of one GPU (Volta or later), and in words why there are none.

    Args:
        uuid: the GPU's, as torch has it.
        nvml: the library nvidia-ml-py (extra gpu); imported if None.
    """
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        return [], "NVML (pip install 'medweave[gpu]')"
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as error:
        return [], f"NVML ({error})"

    def read() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except nvml.NVMLError as error:
            raise OSError(str(error)) from error

    return [Counter(kind=GPU, read=read)], ""


class CountedJoules:
    """The energy that counters have measured since the first reading; a counter may wrap around once between two readings."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters, self._joules = list(counters), 0.0
        self._last_j: list[float] | None = None

    def read(self) -> float:
        """Return the energy since the first reading, J.

        Raises:
            OSError, ValueError: a counter cannot be read.
        """
        now_j = [counter.read() for counter in self._counters]
        for counter, before_j, after_j in zip(self._counters, self._last_j or now_j, now_j, strict=True):
            self._joules += grown(before_j, after_j, begins_again_at=counter.begins_again_at)
        self._last_j = now_j
        return self._joules


class EnergyMeter:
    """The sum of several energy counters; a thread reads them often enough to detect that a counter wraps around.

    Attributes:
        missing: in words, why others are not read.
    """

    def __init__(
        self, counters: Sequence[Counter], missing: Sequence[str], *, read_every_s: float = READ_EVERY_S
    ) -> None:
        self.missing, self._counters = list(missing), list(counters)
        self._counted, self._joules, self._reported_j = CountedJoules(counters), 0.0, 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._read()
        if self._counters:
            threading.Thread(target=self._watch, args=(read_every_s,), name="energy", daemon=True).start()

    @property
    def kinds(self) -> list[str]:
        """The kind of each counter in use."""
        return [counter.kind for counter in self._counters]

    def joules(self) -> float | None:
        """Return the energy since the last call, J; None without any counter."""
        with self._lock:
            self._read()
            joules, self._reported_j = self._joules - self._reported_j, self._joules
            return joules if self._counters else None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _watch(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            with self._lock:
                self._read()

    def _read(self) -> None:
        if not self._counters:
            return
        try:
            self._joules = self._counted.read()
        except (OSError, ValueError):
            self.missing.append(f"{self._counters[0].kind} and others (became unreadable during the run)")
            self._counters = []
            self.close()
