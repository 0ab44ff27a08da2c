"""What a connector may offer to the scheduler and the cache beyond StreamFlow's interface: one protocol per capability.

An instance is tested after `transfer.capabilities.underlying`, because StreamFlow represents a deployment that is not used yet by
another object. The two class attributes are tested on the connector's class, before there is an instance.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

from medweave_connectors.jobs.job_requests import LocationSize
from medweave_connectors.jobs.worker_environment import RemoteWorker

Location = Any  # an ExecutionLocation: the driver imports modules of this package, and not StreamFlow


@runtime_checkable
class ChecksAtStart(Protocol):
    """A connector class whose deployments are brought up at the start of the run, so that their errors appear at once."""

    CHECKED_AT_START: ClassVar[bool]


@runtime_checkable
class GivesNodes(Protocol):
    """A connector class with locations that provide any number of nodes: a queue, or all pods of a cluster."""

    LOCATION_GIVES_NODES: ClassVar[bool]


@runtime_checkable
class ReportsSizes(Protocol):
    """A connector that reports the largest request that its locations accept."""

    async def sizes(self, service: str | None) -> dict[str, LocationSize]:
        """Return the size of each location; locations of unknown size are left out."""


@runtime_checkable
class LimitsLocations(Protocol):
    """A connector that limits the number of locations of a job."""

    def most_locations(self, service: str | None) -> int | None:
        """Return the largest number of locations of a job; None without a limit."""


@runtime_checkable
class DescribesWorkers(Protocol):
    """A connector to remote machines whose jobs can be cached: it describes what computes them."""

    async def worker_of(self, location: Location, job_name: str) -> RemoteWorker:
        """Return the environment of the job's command."""


@runtime_checkable
class RecordsOutputs(Protocol):
    """A connector that must be informed of the location of a job's outputs, also where the cache has restored them."""

    def has_outputs(self, location: Location, workdir: str) -> None:
        """Record that the outputs in a folder are at this location."""
