"""What stands between a job and a place: locations that are too small, too few, or not there yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from streamflow.core.deployment import DeploymentManager, Target
from streamflow.core.scheduling import AvailableLocation, Hardware
from streamflow.data.utils import get_mount_point

from medweave_connectors.host.errors import ImpossibleRequest
from medweave_connectors.jobs.job_requests import LocationSize


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
        """True where waiting cannot help."""
        return not self.missing

    def error(self, job_name: str, asked: Hardware, *, gpus: int = 0, waited_s: float = 0.0) -> ImpossibleRequest:
        """What to tell the user.

        Args:
            gpus: those that the tool asks for.
            waited_s: how long it was waited for what is missing, s.
        """
        if self.missing:
            return ImpossibleRequest(
                f"{job_name} waited {waited_s:g} s for a place that did not come.\n"
                f"  seen:     {'; '.join(self.missing)}\n"
                f"  expected: as many locations as the binding asks for\n"
                f"  do:       look at the deployment, or correct `service` and `locations` of the binding"
            )
        if self.small:
            return ImpossibleRequest(
                f"{job_name} asks for {asked.cores:g} cores and {asked.memory:g} MiB of memory"
                f"{f' and {gpus} GPUs' if gpus else ''}, "
                f"and no location it is bound to has that much.\n"
                f"  seen:     {'; '.join(self.small)}\n"
                f"  expected: a location with at least what the tool asks for\n"
                f"  do:       bind the step to a larger deployment in streamflow.yml"
            )
        if self.full:
            return no_room(job_name, storage_of(asked), self.full)
        return ImpossibleRequest(
            f"{job_name} is bound to more locations than there are.\n"
            f"  seen:     {'; '.join(self.few)}\n"
            f"  expected: at most as many `locations` as the deployment has\n"
            f"  do:       correct `locations` in the binding, or make the deployment larger"
        )


def storage_of(asked: Hardware) -> float:
    """Free space that a tool asks for, MiB: tmpdirMin and outdirMin, which lie in the same folder."""
    return float(sum(disk.size for disk in asked.storage.values()))


def no_room(job_name: str, storage_mib: float, seen: Sequence[str]) -> ImpossibleRequest:
    """The disk is too full for a job."""
    return ImpossibleRequest(
        f"{job_name} asks for {storage_mib:.0f} MiB of disk (tmpdirMin and outdirMin), "
        f"and no location it is bound to has that much.\n"
        f"  seen:     {'; '.join(seen)}\n"
        f"  expected: at least what the tool asks for\n"
        f"  do:       free space there, or name a `workdir` on another disk in streamflow.yml"
    )


async def look(
    deployments: DeploymentManager, places: Sequence[tuple[Target, int]], asked: Hardware, *, gpus: int = 0
) -> Shortfall | None:
    """Asks each deployment what it has, busy or not; None where at least one can serve the job.

    Args:
        places: each target, and how many of StreamFlow's locations serve it (one queue gives any number of nodes).
        gpus: those that the tool asks for, on each node.
    """
    small, full, few, missing = [], [], [], []
    for target, wanted in places:
        name = target.deployment.name
        found = await deployments.get_connector(name).get_available_locations(service=target.service)
        connector: Any = deployments.get_connector(name)
        most = connector.most_locations(target.service) if hasattr(connector, "most_locations") else None
        if most is not None and target.locations > most:
            few.append(f"locations: {target.locations}, and {name} has {most}")
            continue
        hardware = [location.hardware for location in found.values()]
        sizes = await sizes_at(deployments, name, target.service)
        fits = [
            (has is None or (has.cores >= asked.cores and has.memory >= asked.memory))
            and sizes.get(place, LocationSize()).fits(cores=asked.cores, memory_mib=asked.memory, gpus=gpus)
            for place, has in zip(found, hardware, strict=True)
        ]
        if sum(fits) >= wanted:
            short = await _full(deployments, found.values(), target.workdir, storage_of(asked))
            if len(found) - len(short) >= wanted:
                return None
            full += short
        elif fits and not any(fits):
            small += [f"{name} has {has.cores:g} cores and {has.memory:.0f} MiB" for has in hardware if has]
            small += [f"{place} of {name} has {sizes[place]}" for place in found if place in sizes]
        else:
            service = f", service {target.service}," if target.service else ""
            missing.append(f"{name}{service} has {sum(fits)} of {wanted} locations")
    return Shortfall(small=tuple(small), full=tuple(full), few=tuple(few), missing=tuple(missing))


async def _full(
    deployments: DeploymentManager, places: Iterable[AvailableLocation], workdir: str, storage_mib: float
) -> list[str]:
    """The places whose disk had less when they were first asked, as the engine counts it; what it does not count is not here."""
    short = []
    for place in places:
        disks = place.hardware.storage if place.hardware else {}
        if all(disk.size >= storage_mib for disk in disks.values()):
            continue  # whichever it is: the engine is not asked, which would ask the place for each job
        mount_point = await get_mount_point(deployments.context, place, workdir)
        if (size := place.hardware.get_size(mount_point)) < storage_mib:
            short.append(f"{place.name} of {place.deployment} has {size:.0f} MiB on {mount_point}")
    return short


async def sizes_at(deployments: DeploymentManager, name: str, service: str | None) -> dict[str, LocationSize]:
    """The most that a job can have in each location of a deployment; empty where that is not known, or not yet."""
    connector: Any = deployments.get_connector(name)
    sizes: dict[str, LocationSize] = await connector.sizes(service) if hasattr(connector, "sizes") else {}
    return sizes
