"""`medweave.policy`: which of a deployment's free places a job gets."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from importlib.resources import files
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.scheduling import AvailableLocation, Hardware, JobAllocation, LocationAllocation, Policy
from streamflow.core.workflow import Job, Status

from medweave_connectors.engine.scheduling.choice import Candidate, in_order
from medweave_connectors.engine.scheduling.inputs import Inputs
from medweave_connectors.engine.scheduling.shortfall import sizes_at
from medweave_connectors.jobs import job_requests

_BUSY = (Status.FIREABLE, Status.RUNNING)


class MedweavePolicy(Policy):
    """A place with the GPUs that the job asks for; then the one with most of its data; then the least loaded."""

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
        """One place, or None where no free one has the GPUs."""
        chosen = await self.choose(context, job, list(available_locations.values()), 1)
        return chosen[0] if chosen else None

    async def choose(
        self, context: StreamFlowContext, job: Job, free: Sequence[AvailableLocation], wanted: int
    ) -> list[AvailableLocation]:
        """As many places as are wanted, of one deployment; none where too few of the free ones have the GPUs."""
        gpus = job_requests.hints_of(job.name).gpus_min
        if not gpus and len(free) <= wanted:
            return list(free)
        by_name = {place.name: place for place in sorted(free, key=lambda place: place.name)}
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
                load=_load(context.scheduler, place),
            )
            for name, place in by_name.items()
        ]
        chosen = [by_name[each.name] for each in in_order(candidates, gpus=gpus)]
        return chosen[:wanted] if len(chosen) >= wanted else []

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of a policy's `config`."""
        return files(__package__).joinpath("policy.schema.json").read_text("utf-8")


def _load(scheduler: Any, place: AvailableLocation) -> float:
    """Jobs that have this place now, as a share of its cores or slots."""
    held = scheduler.location_allocations.get(place.deployment, {}).get(place.name)
    busy = {job for job in held.jobs if scheduler.job_allocations[job].status in _BUSY} if held else ()
    room = place.hardware.cores if place.hardware is not None else place.slots or 1
    return len(busy) / max(room, 1)
