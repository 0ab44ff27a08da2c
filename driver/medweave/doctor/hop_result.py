"""The results of checks: hops with their health, and the type of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """Health of a hop; the worst one decides the exit code."""

    OK = "ok"
    WARNING = "warning"  # a run works, and may miss something
    UNKNOWN = "unknown"  # not determined: no answer in time, or no right to read it
    FAULT = "fault"  # a run would fail


@dataclass(frozen=True, slots=True, kw_only=True)
class HopResult:
    """One line of the table: the result of a check.

    Attributes:
        place: name of the deployment.
        name: name of the check ("ssh", "partition", …).
        seen: the result in words, with units.
        do: how to fix it; empty if there is nothing to fix.
    """

    place: str
    name: str
    health: Health
    seen: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a deployment; the checks of a deployment run in their order.

    Attributes:
        name: name of the hop if the check does not answer.
        try_it: runs the check and yields its hops.
        leads_on: whether the following checks are skipped if this one fails.
    """

    name: str
    try_it: Callable[[], Iterable[HopResult]]
    leads_on: bool = False


def quantity(num_bytes: float) -> str:
    """Return a number of bytes for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def skew(place: str, ahead_s: float, within_s: float) -> HopResult:
    """Return the hop of a clock.

    Args:
        ahead_s: how far it is ahead of this machine's clock, s.
        within_s: accuracy of that value, s.
    """
    seen = (
        f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the clock of this machine (± {within_s:.1f} s)"
    )
    if abs(ahead_s) <= MOST_SKEW_S + within_s:
        return HopResult(place=place, name="clock", health=Health.OK, seen=seen)
    return HopResult(
        place=place, name="clock", health=Health.WARNING, seen=seen,
        do="synchronize the clocks with NTP: certificates, tokens and report times depend on them",
    )  # fmt: skip


MOST_SKEW_S = 5.0
