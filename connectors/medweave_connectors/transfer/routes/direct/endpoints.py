"""What a connector tells of a place that another site may send to, or be sent to from. No streamflow in here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_connectors.host.shells import OpenShell


@dataclass(frozen=True, slots=True)
class End:
    """One end of a direct copy.

    Attributes:
        name: of the place, among all deployments; what is opened at several of them is opened in the order of these.
        hosts: names or addresses at which other sites may reach it, best first.
        bind: the one address at which it listens; empty for all that it has.
        open: starts a program there, with its input and output.
    """

    name: str
    hosts: Sequence[str]
    bind: str
    open: Callable[[Sequence[str]], Awaitable[OpenShell]]


async def end_of(connector: Any, location: Any) -> End | None:
    """The place as an end; None where its connector has no such thing (a container over ssh, the laptop)."""
    far_end = getattr(behind(connector), "far_end", None)
    return None if far_end is None else await far_end(location)


def behind(connector: Any) -> Any:
    """A deployment that comes up at its first use has a connector behind the one that the engine knows."""
    return getattr(connector, "_connector", None) or connector
