"""Energy as it is written and read: what a machine's own counters told, and how figures are spelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

J_PER_WH = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedEnergy:
    """What counters of electricity have told of a training: it is measured, but of machines and not of a process.

    Attributes:
        each_wh: of each epoch, or of each round of replicas, its validation included, Wh; None where nothing was counted.
        counters: kind to how many were read, on all machines of the training together.
        missing: why others were not read.
    """

    each_wh: tuple[float | None, ...]
    counters: Mapping[str, int]
    missing: tuple[str, ...]

    @property
    def known_wh(self) -> list[float]:
        """Of those epochs that were counted."""
        return [wh for wh in self.each_wh if wh is not None]

    @property
    def whole_wh(self) -> float | None:
        """Of the whole training; None where a part of it was not counted."""
        return sum(self.known_wh) if self.each_wh and len(self.known_wh) == len(self.each_wh) else None

    def describe(self) -> str:
        """In words, with what the figure is of; where nothing was counted, why."""
        known, reasons = self.known_wh, "; ".join(self.missing)
        if not known:
            return f"not measured: {reasons or 'no epoch was trained'}"
        counters = " and ".join(f"{kind} ({number})" for kind, number in self.counters.items()) or "an earlier attempt"
        left = "" if len(known) == len(self.each_wh) else f" in {len(known)} of {len(self.each_wh)} epochs"
        return (
            f"{spelled(sum(known))}{left}, {spelled(sum(known) / len(known))} an epoch, measured by {counters}: of all that ran on "
            f"the machine meanwhile, not of this training alone{f'; not in it: {reasons}' if reasons else ''}"
        )


def spelled(wh: float) -> str:
    """Energy as people read it: `0.3 Wh`, `12.4 kWh`."""
    return f"{wh / 1000:,.1f} kWh" if wh >= 1000 else f"{wh:.0f} Wh" if wh >= 10 else f"{wh:.2g} Wh" if wh else "0 Wh"
