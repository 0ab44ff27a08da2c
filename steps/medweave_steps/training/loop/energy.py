"""The energy that the machines of all ranks use during a training, by counters of the whole machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.energy import J_PER_WH, CountedEnergy
from medweave_core.contracts.hardware import HardwareFigures
from medweave_steps.runtime import environment
from medweave_steps.runtime.energy import POWERCAP, EnergyMeter, gpu_counters, package_counters
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.group import Alone, Group


class RanksEnergy:
    """The energy of all ranks: each rank reads its GPU, and the first rank of each machine the processors, which all share."""

    def __init__(self, group: Group, device: Any, *, powercap: Path = POWERCAP, elsewhere: str = "") -> None:
        """Open the counters of this rank; every rank must do so.

        Args:
            device: torch.device that this rank computes on; None if none.
            powercap: folder of the processors' counters.
            elsewhere: why nothing is measured, in words, where other machines than those of the ranks compute.
        """
        self._group = group
        machines = group.gather(environment.machine())
        opened = []
        if not elsewhere and machines.index(machines[group.rank]) == group.rank:
            opened.append(package_counters(powercap))
        if not elsewhere and device.type == "cuda":
            properties = require("torch", extra="train").cuda.get_device_properties(device)
            opened.append(gpu_counters(str(properties.uuid)))
        missing = [reason for _, reason in opened if reason] or [elsewhere] * bool(elsewhere)
        self._meter = EnergyMeter([counter for counters, _ in opened for counter in counters], missing)

    def begin(self) -> None:
        """Start measuring now on this rank."""
        self._meter.joules()

    def close(self) -> None:
        """Stop measuring."""
        self._meter.close()

    def joules(self) -> float | None:
        """Return the energy of all ranks since the last call, J; None without any counter. Every rank must call it."""
        known = [joules for joules in self._group.gather(self._meter.joules()) if joules is not None]
        return sum(known) if known else None

    def counted(self, each_wh: Sequence[float | None], hardware: HardwareFigures | None = None) -> CountedEnergy:
        """Return the epochs' figures with the counters that measured them; every rank must call it.

        Args:
            hardware: figures of the hardware monitor, which has the energy by component.
        """
        meters = self._group.gather((self._meter.kinds, self._meter.missing))
        return CountedEnergy(
            each_wh=tuple(each_wh),
            counters=dict(Counter(kind for kinds, _ in meters for kind in kinds)),
            missing=tuple(dict.fromkeys(reason for _, reasons in meters for reason in reasons)),
            components=hardware.components if hardware else (),
        )


def open_energy(group: Group, device: Any, *, is_together: bool, powercap: Path = POWERCAP) -> RanksEnergy:
    """Return the counters of all ranks; of this rank's machine alone if the ranks do not wait for each other. All must call it."""
    if is_together:
        return RanksEnergy(group, device, powercap=powercap)
    machines = group.gather(environment.machine())
    elsewhere = "the workers run on other machines, whose counters are not read" if len(set(machines)) > 1 else ""
    if not elsewhere and len(machines) > 1 and device.type == "cuda":
        elsewhere = "the workers have GPUs of their own, whose counters are not read"
    return RanksEnergy(Alone(), device, powercap=powercap, elsewhere=elsewhere)


def wh_of(joules: float | None) -> float | None:
    """Return joules as Wh, rounded to the microwatt hour."""
    return None if joules is None else round(joules / J_PER_WH, 6)
