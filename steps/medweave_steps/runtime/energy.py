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
PACKAGE, GPU = "RAPL of a processor package", "NVML of a GPU"
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
    zones = sorted(path for path in powercap.glob("intel-rapl:*") if re.fullmatch(r"intel-rapl:\d+", path.name))
    try:
        counters = [_package(zone) for zone in zones if (zone / "name").read_text().startswith("package")]
        for counter in counters:
            counter.read()
    except PermissionError:
        return [], "RAPL (only root can read the counters of this machine, energy_uj)"
    except (OSError, ValueError):
        return [], "RAPL (the counters of this machine cannot be read)"
    return counters, "" if counters else "RAPL (this machine has no processor energy counter)"


def _package(zone: Path) -> Counter:
    return Counter(
        kind=PACKAGE,
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


class EnergyMeter:
    """The sum of several energy counters; a thread reads them often enough to detect that a counter wraps around.

    Attributes:
        missing: in words, why others are not read.
    """

    def __init__(
        self, counters: Sequence[Counter], missing: Sequence[str], *, read_every_s: float = READ_EVERY_S
    ) -> None:
        self.missing, self._counters = list(missing), list(counters)
        self._last_j, self._joules = [0.0] * len(self._counters), 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._read()
        self._joules = 0.0
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
            joules, self._joules = self._joules, 0.0
            return joules if self._counters else None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _watch(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            with self._lock:
                self._read()

    def _read(self) -> None:
        try:
            now_j = [counter.read() for counter in self._counters]
        except (OSError, ValueError):
            self.missing.append(f"{self._counters[0].kind} and others (became unreadable during the run)")
            self._counters, self._last_j = [], []
            self.close()
            return
        for counter, before_j, after_j in zip(self._counters, self._last_j, now_j, strict=True):
            self._joules += grown(before_j, after_j, begins_again_at=counter.begins_again_at)
        self._last_j = now_j
