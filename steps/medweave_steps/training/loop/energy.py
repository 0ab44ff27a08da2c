"""What the machines of all ranks take while these train, by counters that know no process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.energy import J_PER_WH, CountedEnergy
from medweave_steps.runtime import environment
from medweave_steps.runtime.energy import POWERCAP, EnergyMeter, gpu_counters, package_counters
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.group import Group


class RanksEnergy:
    """Each rank reads the GPU that it computes on, and the first one of each machine the processors, which all share."""

    def __init__(self, group: Group, device: Any, *, powercap: Path = POWERCAP, elsewhere: str = "") -> None:
        """Every rank must make one.

        Args:
            device: torch.device that this rank computes on; None if none.
            powercap: folder of the processors' counters.
            elsewhere: in words, what computes on other machines than the ranks, so that nothing is read.
        """
        self._group = group
        machines = group.gather(environment.machine())
        found = []
        if not elsewhere and machines.index(machines[group.rank]) == group.rank:
            found.append(package_counters(powercap))
        if not elsewhere and device.type == "cuda":
            properties = require("torch", extra="train").cuda.get_device_properties(device)
            found.append(gpu_counters(str(properties.uuid)))
        missing = [reason for _, reason in found if reason] or [elsewhere] * bool(elsewhere)
        self._meter = EnergyMeter([counter for counters, _ in found for counter in counters], missing)

    def begin(self) -> None:
        """Leaves out what was counted so far on this rank."""
        self._meter.joules()

    def close(self) -> None:
        """Reads no more."""
        self._meter.close()

    def joules(self) -> float | None:
        """Of all ranks since this was last asked, J; every rank must call it. None where none of them counts."""
        known = [each for each in self._group.gather(self._meter.joules()) if each is not None]
        return sum(known) if known else None

    def told(self, each_wh: Sequence[float | None]) -> CountedEnergy:
        """The epochs' figures with what they were counted by; every rank must call it."""
        told = self._group.gather((self._meter.kinds, self._meter.missing))
        return CountedEnergy(
            each_wh=tuple(each_wh),
            counters=dict(Counter(kind for kinds, _ in told for kind in kinds)),
            missing=tuple(dict.fromkeys(reason for _, reasons in told for reason in reasons)),
        )


def wh_of(joules: float | None) -> float | None:
    """Joules as Wh, to the microwatt hour."""
    return None if joules is None else round(joules / J_PER_WH, 6)
