"""Energy of a training, as a machine's counters measured it and as the hardware monitor has it, and its text form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

J_PER_WH = 3600.0
CORE_W = 12.0
"""Power of a busy core, of any processor. Source: Green Algorithms, doi 10.1002/advs.202100707."""
MEMORY_W_PER_GB = 0.3725
"""Power of memory, in use or not. Source: as `CORE_W`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentEnergy:
    """Energy of one component of the machines of a training, from the samples of the hardware monitor.

    Attributes:
        component: processor, memory or gpu.
        kind: measured by the hardware, or modelled from the load of the training's own processes.
        source: the counter, or the model in words.
        wh: Wh, of all ranks together, in the time of the monitor.
        covered_share: share of the time of the monitor in which the power was known, of the rank with the smallest one.
    """

    component: Literal["processor", "memory", "gpu"]
    kind: Literal["measured", "modelled"]
    source: str
    wh: float
    covered_share: float

    def describe(self) -> str:
        """Return the figure as text: `GPU 12 Wh (measured: NVML of a GPU)`."""
        name = "GPU" if self.component == "gpu" else self.component
        part = f", in {self.covered_share:.0%} of the time" if self.covered_share < 0.995 else ""
        return f"{name} {spelled(self.wh)} ({self.kind}: {self.source}{part})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedEnergy:
    """Energy that electricity counters measured during a training: of whole machines, not of a process.

    Attributes:
        each_wh: of each epoch, or of each round of replicas, its validation included, Wh; None without a measurement.
        counters: number of counters by kind, on all machines of the training together.
        missing: reasons why other counters were not read.
        components: energy by component, of the time of the hardware monitor: since the training was resumed, if it was. Empty
            without a monitor.
    """

    each_wh: tuple[float | None, ...]
    counters: Mapping[str, int]
    missing: tuple[str, ...]
    components: tuple[ComponentEnergy, ...] = ()

    @property
    def known_wh(self) -> list[float]:
        """Return the energy of each measured epoch, Wh."""
        return [wh for wh in self.each_wh if wh is not None]

    @property
    def whole_wh(self) -> float | None:
        """Return the energy of the whole training, Wh; None if an epoch was not measured."""
        return sum(self.known_wh) if self.each_wh and len(self.known_wh) == len(self.each_wh) else None

    @property
    def gpu_wh(self) -> float | None:
        """Return the energy of the GPUs, Wh; None if the monitor has none."""
        known = [part.wh for part in self.components if part.component == "gpu"]
        return sum(known) if known else None

    def describe(self) -> str:
        """Return the figure as text, with its counters; without a measurement, the reason."""
        known, reasons = self.known_wh, "; ".join(self.missing)
        if not known:
            return f"not measured: {reasons or 'no epoch was trained'}"
        counters = " and ".join(f"{kind} ({number})" for kind, number in self.counters.items()) or "an earlier attempt"
        left = "" if len(known) == len(self.each_wh) else f" in {len(known)} of {len(self.each_wh)} epochs"
        return (
            f"{spelled(sum(known))}{left}, {spelled(sum(known) / len(known))} per epoch, measured by {counters} "
            f"for the whole machine, including other programs{f'; not included: {reasons}' if reasons else ''}"
        )


def spelled(wh: float) -> str:
    """Return an energy as text: `0.3 Wh`, `12.4 kWh`."""
    return f"{wh / 1000:,.1f} kWh" if wh >= 1000 else f"{wh:.0f} Wh" if wh >= 10 else f"{wh:.2g} Wh" if wh else "0 Wh"
