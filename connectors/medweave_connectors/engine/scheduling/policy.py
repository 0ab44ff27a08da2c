"""`medweave.policy`: which of a deployment's free locations a job gets."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from importlib.resources import files
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.scheduling import AvailableLocation, Hardware, JobAllocation, LocationAllocation, Policy
from streamflow.core.workflow import Job, Status

from medweave_connectors.engine.scheduling.inputs import Inputs
from medweave_connectors.engine.scheduling.ranking import Candidate, rank_candidates
from medweave_connectors.engine.scheduling.shortfall import sizes_at
from medweave_connectors.jobs import job_requests

_BUSY = (Status.FIREABLE, Status.RUNNING)


class MedweavePolicy(Policy):
    """Chooses the location with the GPUs that the job requests, then with most of its data, then the least loaded."""

    def __init__(self) -> None:
        self._inputs = Inputs()

    async def get_location(
        self,
        context: StreamFlowContext,
        job: Job,
        hardware_requirement: Hardware,
        available_locations: MutableMapping[str, AvailableLocation],
        jobs: MutableMapping[str, JobAllocation],
        locations: MutableMapping[str, MutableMapping[str, LocationAllocation]],
    ) -> AvailableLocation | None:
        """Return a location; None if no free location has the GPUs."""
        chosen = await self.choose(context, job, list(available_locations.values()), 1)
        return chosen[0] if chosen else None

    async def choose(
        self, context: StreamFlowContext, job: Job, free: Sequence[AvailableLocation], num_locations: int
    ) -> list[AvailableLocation]:
        """Return the requested number of locations of one deployment; none if too few free locations have the GPUs."""
        gpus = job_requests.hints_of(job.name).gpus_min
        if not gpus and len(free) <= num_locations:
            return list(free)
        by_name = {location.name: location for location in sorted(free, key=lambda location: location.name)}
        deployment, service = free[0].deployment, free[0].service
        sizes = await sizes_at(context.deployment_manager, deployment, service)
        num_bytes = await self._inputs.bytes_at(
            context, job, list(by_name), lambda copy: copy.name if copy.deployment == deployment else ""
        )
        candidates = [
            Candidate(
                name=name,
                gpus=sizes[name].gpus if name in sizes else None,
                num_bytes=num_bytes[name],
                load=_load(context.scheduler, location),
            )
            for name, location in by_name.items()
        ]
        chosen = [by_name[candidate.name] for candidate in rank_candidates(candidates, gpus=gpus)]
        return chosen[:num_locations] if len(chosen) >= num_locations else []

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of a policy's `config`."""
        return files(__package__).joinpath("policy.schema.json").read_text("utf-8")


def _load(scheduler: Any, location: AvailableLocation) -> float:
    """Return the number of jobs at a location as a share of its cores or slots."""
    allocation = scheduler.location_allocations.get(location.deployment, {}).get(location.name)
    busy = {job for job in allocation.jobs if scheduler.job_allocations[job].status in _BUSY} if allocation else ()
    capacity = location.hardware.cores if location.hardware is not None else location.slots or 1
    return len(busy) / max(capacity, 1)
