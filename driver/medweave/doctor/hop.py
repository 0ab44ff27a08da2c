"""What was found at one hop of a site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """How a hop is; the worst decides the exit code."""

    OK = "ok"
    WARNING = "warning"  # a run works, and may miss something
    UNKNOWN = "unknown"  # nobody could say: no answer in time, or no right to ask
    FAULT = "fault"  # a run would fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One line of the table.

    Attributes:
        place: the deployment.
        name: what was tried ("ssh", "partition", …).
        seen: what was found, with units.
        do: what to do about it; empty where nothing is to be done.
    """

    place: str
    name: str
    health: Health
    seen: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to try at a deployment; those of one deployment are tried in their order.

    Attributes:
        name: of the hop, where it does not answer.
        try_it: yields what it finds.
        leads_on: without it nothing behind it can be tried.
    """

    name: str
    try_it: Callable[[], Iterable[Hop]]
    leads_on: bool = False


def quantity(num_bytes: float) -> str:
    """Bytes as people read them, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def skew(place: str, ahead_s: float, within_s: float) -> Hop:
    """The hop for a clock.

    Args:
        ahead_s: of this machine's.
        within_s: how exactly it could be read.
    """
    seen = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's, to within {within_s:.1f} s"
    if abs(ahead_s) <= MOST_SKEW_S + within_s:
        return Hop(place=place, name="clock", health=Health.OK, seen=seen)
    return Hop(
        place=place, name="clock", health=Health.WARNING, seen=seen,
        do="set one of the clocks by NTP: certificates, tokens and times in reports depend on it",
    )  # fmt: skip


MOST_SKEW_S = 5.0
