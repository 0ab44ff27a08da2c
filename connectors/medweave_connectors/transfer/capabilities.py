"""What a connector may offer to transfers beyond StreamFlow's interface: one protocol per capability."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from medweave_connectors.host.shells import OpenShell

Value = TypeVar("Value")
Location = Any  # an ExecutionLocation: the driver imports this module, and not StreamFlow


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A location at which an agent can be started that exchanges data with another site.

    Attributes:
        name: unique among all deployments. Programs at several endpoints are started in the order of these names.
        hosts: names or addresses at which other sites may reach the location, best first.
        bind: the address at which the agent listens; empty for all addresses.
        open: starts a program there, with its input and output.
    """

    name: str
    hosts: Sequence[str]
    bind: str
    open: Callable[[Sequence[str]], Awaitable[OpenShell]]


@runtime_checkable
class StartsAgents(Protocol):
    """A connector that starts agents at its locations."""

    async def agent_endpoint(self, location: Location) -> Endpoint | None:
        """Return the endpoint of a location; None where no agent can be started."""


@runtime_checkable
class SharesVolumes(Protocol):
    """A connector whose locations may share volumes."""

    async def distinct(self, locations: Sequence[Location], path: str) -> Sequence[Location]:
        """Return one location for each volume that holds the path."""


@runtime_checkable
class MirrorsCopies(Protocol):
    """A connector that mirrors each copy at further locations."""

    def mirrors(self, location: Location) -> list[Location]:
        """Return the locations that get a copy of everything that is copied to this one."""


@runtime_checkable
class WatchesLocations(Protocol):
    """A connector that detects the loss of a location while it does not answer."""

    async def while_reachable(self, places: Sequence[str], work: Coroutine[Any, Any, Value]) -> Value:
        """Return the result of the work; fail where one of the locations is lost before."""


@runtime_checkable
class RunsAtOneLocation(Protocol):
    """A connector whose `run` may run a command at several locations, and that can run it at one of them only."""

    async def alone(self, location: Location, command: Sequence[str]) -> tuple[str, int]:
        """Run a command at this location only; return its output and exit status."""


def underlying(connector: Any) -> Any:
    """Return the deployed connector of a deployment that StreamFlow brings up at its first use; others as they are."""
    return getattr(connector, "_connector", None) or connector


async def endpoint_of(connector: Any, location: Location) -> Endpoint | None:
    """Return the endpoint of a location; None for the driver's machine and for connectors that start no agents."""
    deployed = underlying(connector)
    return await deployed.agent_endpoint(location) if isinstance(deployed, StartsAgents) else None


def mirrors_of(connector: Any, location: Location) -> list[Location]:
    """Return the locations that get a copy of everything that is copied to this one."""
    deployed = underlying(connector)
    return deployed.mirrors(location) if isinstance(deployed, MirrorsCopies) else []


async def one_per_volume(connector: Any, locations: Sequence[Location], path: str) -> Sequence[Location]:
    """Return one of the locations for each volume that holds the path."""
    deployed = underlying(connector)
    return await deployed.distinct(locations, path) if isinstance(deployed, SharesVolumes) else locations


async def run_at(connector_of: Callable[[str], Any], location: Location, words: list[str]) -> tuple[str, int]:
    """Run a command at a location; return its output and exit status."""
    text, code = await connector_of(location.deployment).run(location=location, command=words, capture_output=True)
    return str(text), int(code)


async def run_only_at(connector: Any, location: Location, words: list[str]) -> tuple[str, int]:
    """Run a command at this location only, whatever `run` of its connector does; return its output and exit status."""
    deployed = underlying(connector)
    if isinstance(deployed, RunsAtOneLocation):
        return await deployed.alone(location, words)
    text, code = await connector.run(location=location, command=words, capture_output=True)
    return str(text), int(code)
