"""The plan of one copy between two sites: source, destination, candidate routes, manifest and missing files."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer.manifest.manifest import Manifest
from medweave_connectors.transfer.shell_commands import StagingPlace

SAME, DIRECT, BUCKET, THROUGH = "same-file-system", "direct", "bucket", "through-driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """One copy of a file or folder to locations of one deployment. `sender.Sender` makes it, `routes.carrier` executes it.

    Attributes:
        source: the location that has the file or folder.
        destinations: the locations that get a copy, of one deployment.
        receivers: one destination for each volume: the copies are staged, verified and published there.
        manifest: the source, without digests.
        place: where each copy is staged, and its final path.
        missing: paths of the files that are sent; None: the whole source. The others come from the receivers' store.
        routes: candidates, the preferred one first. The carrier probes them and reports the route taken.
        reason: why no further route is a candidate.
        may_link: the copy is only read, so it may be a link.
    """

    source: ExecutionLocation
    destinations: tuple[ExecutionLocation, ...]
    receivers: tuple[ExecutionLocation, ...]
    manifest: Manifest
    place: StagingPlace
    missing: tuple[str, ...] | None
    routes: tuple[str, ...]
    reason: str
    may_link: bool

    @property
    def target_deployment(self) -> str:
        """Return the deployment that gets the copy."""
        return str(self.destinations[0].deployment)

    @property
    def name(self) -> str:
        """Return the source's own name, without links."""
        return posixpath.basename(self.manifest.real)

    @property
    def files(self) -> list[str]:
        """Return the paths of the files that are sent."""
        return self.manifest.files if self.missing is None else list(self.missing)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the files that are sent."""
        if self.missing is None:
            return self.manifest.num_bytes
        return sum(self.manifest.entries[path].size for path in self.missing)


def driver_route(source: ExecutionLocation, destination: ExecutionLocation) -> str:
    """Return the route by the driver's machine: `local`, `from-driver`, `to-driver`, or `through-driver` between other sites."""
    if source.local and destination.local:
        return "local"
    if source.local:
        return "from-driver"
    return "to-driver" if destination.local else THROUGH
