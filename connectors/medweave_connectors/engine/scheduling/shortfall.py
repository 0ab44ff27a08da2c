"""Why no location can take a job: locations that are too small, too few, or not available yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from streamflow.core.deployment import DeploymentManager, Target
from streamflow.core.scheduling import AvailableLocation, Hardware
from streamflow.data.utils import get_mount_point

from medweave_connectors.host.errors import ImpossibleRequest
from medweave_connectors.jobs.connector_capabilities import LimitsLocations, ReportsSizes
from medweave_connectors.jobs.job_requests import LocationSize
from medweave_connectors.transfer.capabilities import underlying


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why no target can serve a job, even where nothing else runs.

    Attributes:
        small: locations that have less than the tool asks for; they do not grow.
        full: locations whose disk has less.
        few: targets that want more locations than their deployment ever has.
        missing: targets whose locations are not all there; they may come.
    """

    small: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    few: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def final(self) -> bool:
        """Return True if waiting cannot help."""
        return not self.missing

    def error(self, job_name: str, request: Hardware, *, gpus: int = 0, waited_s: float = 0.0) -> ImpossibleRequest:
        """Return the error for the user.

        Args:
            gpus: number that the tool requests.
            waited_s: time spent waiting for the missing locations, s.
        """
        if self.missing:
            return ImpossibleRequest(
                f"{job_name} waited {waited_s:g} s for a location that did not become available.\n"
                f"  seen:     {'; '.join(self.missing)}\n"
                f"  expected: as many locations as the binding requests\n"
                f"  do:       check the deployment, or correct `service` and `locations` of the binding"
            )
        if self.small:
            return ImpossibleRequest(
                f"{job_name} requests {request.cores:g} cores and {request.memory:g} MiB of memory"
                f"{f' and {gpus} GPUs' if gpus else ''}, "
                f"and no location of its binding has that much.\n"
                f"  seen:     {'; '.join(self.small)}\n"
                f"  expected: a location with at least the resources that the tool requests\n"
                f"  do:       bind the step to a larger deployment in streamflow.yml"
            )
        if self.full:
            return no_room(job_name, storage_of(request), self.full)
        return ImpossibleRequest(
            f"{job_name} is bound to more locations than there are.\n"
            f"  seen:     {'; '.join(self.few)}\n"
            f"  expected: at most as many `locations` as the deployment has\n"
            f"  do:       correct `locations` in the binding, or make the deployment larger"
        )


def storage_of(request: Hardware) -> float:
    """Return the free space that a tool requests, MiB: tmpdirMin and outdirMin, which lie in the same folder."""
    return float(sum(disk.size for disk in request.storage.values()))


def no_room(job_name: str, storage_mib: float, seen: Sequence[str]) -> ImpossibleRequest:
    """Return the error of a disk that is too full for a job."""
    return ImpossibleRequest(
        f"{job_name} requests {storage_mib:.0f} MiB of disk (tmpdirMin and outdirMin), "
        f"and no location of its binding has that much.\n"
        f"  seen:     {'; '.join(seen)}\n"
        f"  expected: at least the disk space that the tool requests\n"
        f"  do:       free space there, or use a `workdir` on another disk in streamflow.yml"
    )


async def find_shortfall(
    deployments: DeploymentManager, targets: Sequence[tuple[Target, int]], request: Hardware, *, gpus: int = 0
) -> Shortfall | None:
    """Compare a job's request with all locations, busy or free. Return None if at least one target can serve the job.

    Args:
        targets: each target with the number of StreamFlow locations that it needs (one queue provides any number of nodes).
        gpus: number that the tool requests on each node.
    """
    small, full, few, missing = [], [], [], []
    for target, num_locations in targets:
        name = target.deployment.name
        connector: Any = deployments.get_connector(name)
        locations = await connector.get_available_locations(service=target.service)
        deployed = underlying(connector)
        most = deployed.most_locations(target.service) if isinstance(deployed, LimitsLocations) else None
        if most is not None and target.locations > most:
            few.append(f"locations: {target.locations}, and {name} has {most}")
            continue
        hardware = [location.hardware for location in locations.values()]
        sizes = await sizes_at(deployments, name, target.service)
        fits = [
            (has is None or (has.cores >= request.cores and has.memory >= request.memory))
            and sizes.get(location, LocationSize()).fits(cores=request.cores, memory_mib=request.memory, gpus=gpus)
            for location, has in zip(locations, hardware, strict=True)
        ]
        if sum(fits) >= num_locations:
            too_full = await _without_disk(deployments, locations.values(), target.workdir, storage_of(request))
            if len(locations) - len(too_full) >= num_locations:
                return None
            full += too_full
        elif fits and (not any(fits) or len(fits) == most):
            for location, fit, has in zip(locations, fits, hardware, strict=True):
                where = f"{location} of {name}" if len(fits) > 1 else name
                if not fit and has:
                    small.append(f"{where} has {has.cores:g} cores and {has.memory:.0f} MiB")
                if not fit and location in sizes:
                    small.append(f"{location} of {name} has {sizes[location]}")
        else:
            service = f", service {target.service}," if target.service else ""
            missing.append(f"{name}{service} has {sum(fits)} of {num_locations} locations")
    return Shortfall(small=tuple(small), full=tuple(full), few=tuple(few), missing=tuple(missing))


async def _without_disk(
    deployments: DeploymentManager, locations: Iterable[AvailableLocation], workdir: str, storage_mib: float
) -> list[str]:
    """Return the locations whose disk had too little space at their first query, as StreamFlow measured it."""
    too_full = []
    for location in locations:
        disks = location.hardware.storage if location.hardware else {}
        if all(disk.size >= storage_mib for disk in disks.values()):
            continue  # any of them has enough: the mount point need not be queried, which takes a command for each job
        mount_point = await get_mount_point(deployments.context, location, workdir)
        if location.hardware and (size := location.hardware.get_size(mount_point)) < storage_mib:
            too_full.append(f"{location.name} of {location.deployment} has {size:.0f} MiB on {mount_point}")
    return too_full


async def sizes_at(deployments: DeploymentManager, name: str, service: str | None) -> dict[str, LocationSize]:
    """Return the largest request that each location of a deployment accepts; empty if that is unknown, or not known yet."""
    connector = underlying(deployments.get_connector(name))
    return await connector.sizes(service) if isinstance(connector, ReportsSizes) else {}
