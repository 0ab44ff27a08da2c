"""`medweave.scheduler`: StreamFlow's scheduler, which says what happens."""

from __future__ import annotations

import asyncio
import copy
import json
import tempfile
from importlib.resources import files
from typing import Any

from streamflow.core.config import BindingConfig
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import Target
from streamflow.core.exception import UnrecoverableWorkflowException
from streamflow.core.scheduling import Hardware, HardwareRequirement
from streamflow.core.workflow import Job, Status
from streamflow.deployment.connector import connector_classes
from streamflow.recovery.failure_manager import DummyFailureManager
from streamflow.scheduling.scheduler import DefaultScheduler

from medweave_connectors import engine_log, requests, shutdown
from medweave_connectors.errors import ImpossibleRequest
from medweave_connectors.placement.paths import OUR_TYPES, resolve_paths
from medweave_connectors.record import plan
from medweave_connectors.record.run import JobEnd

_ENDS: dict[Status, JobEnd] = {
    Status.COMPLETED: "completed",
    Status.RECOVERED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.SKIPPED: "cancelled",
}


class MedweaveScheduler(DefaultScheduler):  # type: ignore[misc]
    """Writes placements and job states into the run's event log."""

    def __init__(self, context: StreamFlowContext, retry_delay: int = 15) -> None:
        super().__init__(context, retry_delay)
        self._run = plan(context.config)
        schemas = {
            name: json.loads(kind.get_schema())
            for name, kind in connector_classes.items()
            if name.startswith(OUR_TYPES)
        }
        resolve_paths(context.config, self._run.folder / "work", schemas)
        for deployment in (context.config.get("deployments") or {}).values():
            # What can be found wrong at the start is found then, not when the first job gets there, hours later.
            if getattr(connector_classes[deployment["type"]], "CHECKED_AT_START", False):
                deployment.setdefault("lazy", False)
        # The engine's own bookkeeping jobs work in the system's temporary folder, in one that is shared by all users.
        tempfile.tempdir = str(self._run.folder / "work")
        engine_log.shorten()
        shutdown.remember_main_task()

    async def schedule(
        self, job: Job, binding_config: BindingConfig, hardware_requirement: HardwareRequirement | None
    ) -> None:
        """Finds a place for a job. Where there is none and nobody tries again, the run ends.

        Raises:
            ImpossibleRequest: every bound location is too small for it; StreamFlow would wait for ever.
        """
        if not self._run.running:
            shutdown.begin(self._run, self.context.config)
        try:
            await self._place(job, binding_config, hardware_requirement)
        except Exception as error:
            final = isinstance(self.context.failure_manager, DummyFailureManager)
            if final or isinstance(error, UnrecoverableWorkflowException):
                shutdown.abort()
            raise

    async def notify_status(self, job_name: str, status: Status) -> None:
        """Passes the engine's word about a job on to the event log."""
        if status == Status.RUNNING:
            self._run.job_started(job_name)
        elif status == Status.RECOVERY:
            self._run.job_recovering(job_name)
        elif status in _ENDS:
            self._run.job_ended(job_name, _ENDS[status])
        allocation = self.job_allocations.get(job_name)
        if allocation and self.context.deployment_manager.get_connector(allocation.target.deployment.name) is None:
            return  # the run is being closed and the deployment is gone: nothing to free, and no error worth a line
        await super().notify_status(job_name, status)

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of `scheduling.scheduler.config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    async def _place(
        self, job: Job, binding_config: BindingConfig, hardware_requirement: HardwareRequirement | None
    ) -> None:
        # Injectors and collectors, which only hand inputs and outputs over, have no requirement: they are no steps.
        if hardware_requirement is None:
            await super().schedule(job, binding_config, hardware_requirement)
            return
        for target in binding_config.targets:
            if self.context.deployment_manager.get_connector(target.deployment.name) is None:
                raise asyncio.CancelledError  # its deployment failed, which was told and ends the run
        asked = hardware_requirement.eval(job)
        await self._refuse_if_impossible(job.name, binding_config, asked)
        targets = {self._for_engine(target): target for target in binding_config.targets}
        await super().schedule(job, BindingConfig(list(targets), binding_config.filters), hardware_requirement)
        allocation = self.get_allocation(job.name)
        requests.note_job(
            job.name,
            requests.JobRequest(
                cores=asked.cores,
                memory_mib=asked.memory,
                hints=requests.hints_of(job.name),
                num_nodes=targets[allocation.target].locations,
                locations=tuple(location.name for location in allocation.locations),
            ),
        )
        self._run.job_scheduled(
            job.name,
            deployment=allocation.target.deployment.name,
            service=allocation.target.service,
            location=",".join(location.name for location in allocation.locations),
            cores=asked.cores,
            memory_mib=asked.memory,
        )

    def _for_engine(self, target: Target) -> Target:
        """The target as StreamFlow must see it: a queue is one location, whatever number of nodes is asked of it."""
        connector: Any = self.context.deployment_manager.get_connector(target.deployment.name)
        # While it is lazy, a connector is a stand-in that knows its type.
        if not getattr(getattr(connector, "type", connector), "LOCATION_GIVES_NODES", False):
            return target
        one = copy.copy(target)
        one.locations = 1
        return one

    async def _refuse_if_impossible(self, job_name: str, binding_config: BindingConfig, asked: Hardware) -> None:
        seen: list[str] = []
        places: list[str] = []
        for target in binding_config.targets:
            connector: Any = self.context.deployment_manager.get_connector(target.deployment.name)
            found = await connector.get_available_locations(service=target.service)
            most = connector.most_locations(target.service) if hasattr(connector, "most_locations") else None
            if most is not None and target.locations > most:
                places.append(f"locations: {target.locations}, and {target.deployment.name} has {most}")
                continue
            for location in found.values():
                has = location.hardware
                if has is None or (has.cores >= asked.cores and has.memory >= asked.memory):
                    return
                seen.append(f"{target.deployment.name} has {has.cores:g} cores and {has.memory:.0f} MiB")
        if places and not seen:
            raise ImpossibleRequest(
                f"{job_name} is bound to more locations than there are.\n"
                f"  seen:     {'; '.join(places)}\n"
                f"  expected: at most as many `locations` as the deployment has\n"
                f"  do:       correct `locations` in the binding, or make the deployment larger"
            )
        if seen:
            raise ImpossibleRequest(
                f"{job_name} asks for {asked.cores:g} cores and {asked.memory:g} MiB of memory, "
                f"and no location it is bound to has that much.\n"
                f"  seen:     {'; '.join(seen)}\n"
                f"  expected: a location with at least what the tool's ResourceRequirement asks for\n"
                f"  do:       bind the step to a larger deployment in streamflow.yml"
            )
