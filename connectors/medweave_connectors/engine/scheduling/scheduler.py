"""`medweave.scheduler`: StreamFlow's scheduler, which says what happens."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import tempfile
from collections.abc import MutableMapping, MutableSequence, Sequence
from importlib.resources import files
from typing import Any

from streamflow.core.config import BindingConfig, Config
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import BindingFilter, FilterConfig, Target
from streamflow.core.exception import UnrecoverableWorkflowException
from streamflow.core.scheduling import AvailableLocation, Hardware, HardwareRequirement, Policy
from streamflow.core.workflow import Job, Status
from streamflow.deployment.connector import connector_classes
from streamflow.recovery.failure_manager import DummyFailureManager
from streamflow.scheduling.scheduler import DefaultScheduler

from medweave_connectors.cache.session import KEEP_DAYS, CacheSession
from medweave_connectors.engine import log_filter, shutdown
from medweave_connectors.engine.scheduling.filter import MedweaveFilter
from medweave_connectors.engine.scheduling.policy import MedweavePolicy
from medweave_connectors.engine.scheduling.run_folders import RunFolders
from medweave_connectors.engine.scheduling.shortfall import look, storage_of
from medweave_connectors.jobs import job_requests, run_abort
from medweave_connectors.runlog import console, plan
from medweave_connectors.runlog.job import JobEnd
from medweave_connectors.runlog.run import PartialMode
from medweave_core.documents.binding_names import check_files, check_named, check_targets
from medweave_core.documents.manager_settings import check_managers, check_wraps
from medweave_core.documents.streamflow_bindings import OUR_TYPES
from medweave_core.documents.streamflow_paths import resolve_paths

# A pod that is lost comes again within minutes, and one that never does is told by its connector much sooner.
LOCATION_DEADLINE_S = 600.0
LOOK_S = 15.0
REUSE_GIB = 50
_NO_POLICY = "__DEFAULT__"  # the engine's name for what a deployment has that names none
_ENDS: dict[Status, JobEnd] = {
    Status.COMPLETED: "completed",
    Status.RECOVERED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.SKIPPED: "cancelled",
}


class MedweaveScheduler(DefaultScheduler):
    """Writes placements and job states into the run's event log."""

    def __init__(
        self,
        context: StreamFlowContext,
        retry_delay: int = 15,
        keep_days: int = KEEP_DAYS,
        partial: PartialMode = "marked",
        reuse_gib: float = REUSE_GIB,
        pseudonyms: bool = True,
    ) -> None:
        super().__init__(context, retry_delay)
        check_managers(context.config)
        check_wraps(context.config)
        check_targets(context.config)
        check_named(context.config)
        check_files(context.config)
        self._run = plan(context.config)
        self._run.partial = partial
        self.pseudonyms = pseudonyms  # of the files and folders that the workflow is given
        self.reuse = CacheSession(self._run, limit_gib=reuse_gib, keep_days=keep_days)
        self._policy = MedweavePolicy()
        schemas = {
            name: json.loads(kind.get_schema())
            for name, kind in connector_classes.items()
            if name.startswith(OUR_TYPES)
        }
        resolve_paths(context.config, self._run.work, schemas)
        self.folders = RunFolders(self._run, context, keep_days=keep_days)
        self.folders.move_into(context.config)
        for deployment in (context.config.get("deployments") or {}).values():
            # What can be found wrong at the start is found then, not when the first job gets there, hours later.
            if getattr(connector_classes[deployment["type"]], "CHECKED_AT_START", False):
                deployment.setdefault("lazy", False)
        # The engine's own bookkeeping jobs work in the system's temporary folder, in one that is shared by all users.
        tempfile.tempdir = str(self._run.work)
        log_filter.shorten()
        run_abort.remember_main_task()

    async def schedule(
        self, job: Job, binding_config: BindingConfig, hardware_requirement: HardwareRequirement | None
    ) -> None:
        """Finds a place for a job. Where there is none and nobody tries again, the run ends.

        Raises:
            ImpossibleRequest: every bound location is too small for it, or did not come; StreamFlow would wait for ever.
        """
        if not self._run.running:
            shutdown.begin(self._run, self.context.config)
        try:
            await self._place(job, binding_config, hardware_requirement)
        except Exception as error:
            final = isinstance(self.context.failure_manager, DummyFailureManager)
            if final or isinstance(error, UnrecoverableWorkflowException):
                run_abort.abort(error)
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
        if allocation and self._is_gone(allocation.target):
            return  # the run is being closed and the deployment is gone: nothing to free, and no error worth a line
        await super().notify_status(job_name, status)

    def get_connector(self, job_name: str) -> Any:
        """The connector of a job that has a place.

        Raises:
            asyncio.CancelledError: the run is being closed, and the deployment is gone: no error worth a line.
        """
        if self._is_gone(self.get_allocation(job_name).target):
            raise asyncio.CancelledError
        return super().get_connector(job_name)

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
        if any(self._is_gone(target) for target in binding_config.targets):
            raise asyncio.CancelledError  # its deployment failed, which was told and ends the run
        asked = hardware_requirement.eval(job)
        wanted: MutableSequence[Target] = list(binding_config.targets)
        # Before the look at what there is, which must not count what they leave out.
        for each in binding_config.filters:
            wanted = await self._get_binding_filter(each).get_targets(job, wanted)
        targets = {self._for_engine(target): target for target in wanted}
        config = BindingConfig(list(targets))
        places = [(theirs, engines.locations) for engines, theirs in targets.items()]
        await self._schedule(job, config, hardware_requirement, asked, places)
        allocation = self.get_allocation(job.name)
        await self.folders.prepare(
            allocation.target, allocation.locations, job_name=job.name, storage_mib=storage_of(asked)
        )
        num_nodes = targets[allocation.target].locations
        inputs = {name: token.value for name, token in job.inputs.items()}
        job_requests.note_job(
            job.name,
            job_requests.JobRequest(
                cores=asked.cores,
                memory_mib=asked.memory,
                hints=job_requests.hints_of(job.name).of_job(inputs, num_nodes=num_nodes),
                num_nodes=num_nodes,
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

    def _get_binding_filter(self, config: FilterConfig) -> BindingFilter:
        found: BindingFilter = super()._get_binding_filter(config)
        if isinstance(found, MedweaveFilter):
            found.context = self.context
        return found

    def _get_policy(self, config: Config) -> Policy:
        """Ours where the file names none: the stock one fills the first place before it looks at the next."""
        return self._policy if config.name == _NO_POLICY else super()._get_policy(config)

    async def _get_locations(
        self,
        job: Job,
        hardware_requirement: Hardware,
        locations: int,
        scheduling_policy: Policy,
        available_locations: MutableMapping[str, AvailableLocation],
    ) -> MutableSequence[AvailableLocation]:
        """Our policy is asked also where no more places are free than are wanted: they may lack the GPUs."""
        if isinstance(scheduling_policy, MedweavePolicy):
            return await scheduling_policy.choose(self.context, job, list(available_locations.values()), locations)
        chosen: MutableSequence[AvailableLocation] = await super()._get_locations(
            job, hardware_requirement, locations, scheduling_policy, available_locations
        )
        return chosen

    def _is_gone(self, target: Target) -> bool:
        return self.context.deployment_manager.get_connector(target.deployment.name) is None

    def _for_engine(self, target: Target) -> Target:
        """The target as StreamFlow must see it: a queue is one location, whatever number of nodes is asked of it."""
        connector: Any = self.context.deployment_manager.get_connector(target.deployment.name)
        # While it is lazy, a connector is a stand-in that knows its type.
        if not getattr(getattr(connector, "type", connector), "LOCATION_GIVES_NODES", False):
            return target
        one = copy.copy(target)
        one.locations = 1
        return one

    async def _schedule(
        self,
        job: Job,
        binding_config: BindingConfig,
        hardware_requirement: HardwareRequirement | None,
        asked: Hardware,
        places: Sequence[tuple[Target, int]],
    ) -> None:
        """StreamFlow's own scheduling, watched: it waits for ever, in silence, for a location that does not come.

        For a busy one it may wait: another job's end frees it.
        """
        gpus = job_requests.hints_of(job.name).gpus_min
        told, lack = None, await look(self.context.deployment_manager, places, asked, gpus=gpus)
        if lack is not None and lack.final:
            raise lack.error(job.name, asked, gpus=gpus)
        clock = asyncio.get_running_loop().time
        since = clock()
        placing = asyncio.create_task(super().schedule(job, binding_config, hardware_requirement))
        try:
            while not (await asyncio.wait({placing}, timeout=LOOK_S))[0]:
                before = lack
                with contextlib.suppress(Exception):  # `placing` asks the same places, and says what is wrong
                    lack = await look(self.context.deployment_manager, places, asked, gpus=gpus)
                if lack is None:
                    since = clock()
                    if before is not None:  # what was missing has come; with retry_delay 0 nobody else would say so
                        async with self.wait_queue:
                            self.wait_queue.notify_all()
                    continue
                waited_s = clock() - since
                if lack.final or waited_s >= LOCATION_DEADLINE_S:
                    raise lack.error(job.name, asked, gpus=gpus, waited_s=round(waited_s))
                if lack != told:
                    told = lack
                    console.say(f"medweave: {job.name} waits: {'; '.join(lack.missing)}")
            placing.result()
        finally:
            placing.cancel()
