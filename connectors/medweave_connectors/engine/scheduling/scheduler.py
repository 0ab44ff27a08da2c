"""`medweave.scheduler`: StreamFlow's scheduler, which records placements and fails jobs that no location can take."""

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
from streamflow.deployment.future import FutureConnector
from streamflow.recovery.failure_manager import DummyFailureManager
from streamflow.scheduling.scheduler import DefaultScheduler

from medweave_connectors.cache.session import KEEP_DAYS, CacheSession
from medweave_connectors.engine import log_filter, shutdown
from medweave_connectors.engine.scheduling.filter import TYPE as FILTER
from medweave_connectors.engine.scheduling.filter import MedweaveFilter
from medweave_connectors.engine.scheduling.policy import MedweavePolicy
from medweave_connectors.engine.scheduling.run_folders import RunFolders
from medweave_connectors.engine.scheduling.shortfall import find_shortfall, storage_of
from medweave_connectors.jobs import job_requests, run_abort
from medweave_connectors.jobs.connector_capabilities import ChecksAtStart, GivesNodes
from medweave_connectors.runlog import console, plan
from medweave_connectors.runlog.job import JobEnd
from medweave_connectors.runlog.run import PartialMode
from medweave_core.documents.binding_names import check_files, check_named, check_targets
from medweave_core.documents.manager_settings import check_managers, check_wraps
from medweave_core.documents.streamflow_bindings import OUR_TYPES
from medweave_core.documents.streamflow_paths import resolve_paths

# A lost pod is replaced within minutes; its connector reports one that is not replaced much sooner.
LOCATION_DEADLINE_S = 600.0
CHECK_S = 15.0
REUSE_GIB = 50
_NO_POLICY = "__DEFAULT__"  # StreamFlow's name for the policy of a deployment that names none
_ENDS: dict[Status, JobEnd] = {
    Status.COMPLETED: "completed",
    Status.RECOVERED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.SKIPPED: "cancelled",
}


class MedweaveScheduler(DefaultScheduler):
    """Schedules jobs, and writes placements and job states into the run's event log."""

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
        self.pseudonyms = pseudonyms  # for the names of files and folders in the job file
        self.reuse = CacheSession(self._run, limit_gib=reuse_gib, keep_days=keep_days)
        self._policy, self._filters = MedweavePolicy(), dict[str, MedweaveFilter]()
        schemas = {
            name: json.loads(kind.get_schema())
            for name, kind in connector_classes.items()
            if name.startswith(OUR_TYPES)
        }
        resolve_paths(context.config, self._run.work, schemas)
        self.folders = RunFolders(self._run, context, keep_days=keep_days)
        self.folders.move_into(context.config)
        for deployment in (context.config.get("deployments") or {}).values():
            # Its settings are checked at the start of the run, not hours later when its first job is scheduled.
            kind = connector_classes[deployment["type"]]
            if isinstance(kind, ChecksAtStart) and kind.CHECKED_AT_START:
                deployment.setdefault("lazy", False)
        # StreamFlow's own jobs would use the system's temporary folder, which all users share.
        tempfile.tempdir = str(self._run.work)
        log_filter.shorten()
        run_abort.remember_main_task()

    async def schedule(
        self, job: Job, binding_config: BindingConfig, hardware_requirement: HardwareRequirement | None
    ) -> None:
        """Allocate locations for a job. Abort the run if that fails and no failure manager retries.

        Raises:
            ImpossibleRequest: every bound location is too small, or did not become available; StreamFlow would wait forever.
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
        """Write the state of a job into the event log."""
        if status == Status.RUNNING:
            self._run.job_started(job_name)
        elif status == Status.RECOVERY:
            self._run.job_recovering(job_name)
        elif status in _ENDS:
            self._run.job_ended(job_name, _ENDS[status])
        allocation = self.job_allocations.get(job_name)
        if allocation and self._is_gone(allocation.target):
            return  # the run is ending and the deployment is undeployed: there is nothing to free, and no error to log
        await super().notify_status(job_name, status)

    def get_connector(self, job_name: str) -> Any:
        """Return the connector of a scheduled job.

        Raises:
            asyncio.CancelledError: the run is ending and the deployment is undeployed: no error to log.
        """
        if self._is_gone(self.get_allocation(job_name).target):
            raise asyncio.CancelledError
        return super().get_connector(job_name)

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of `scheduling.scheduler.config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    async def _place(
        self, job: Job, binding_config: BindingConfig, hardware_requirement: HardwareRequirement | None
    ) -> None:
        # StreamFlow's own jobs, which inject inputs and collect outputs, have no requirement.
        if hardware_requirement is None:
            await super().schedule(job, binding_config, hardware_requirement)
            return
        if any(self._is_gone(target) for target in binding_config.targets):
            raise asyncio.CancelledError  # its deployment failed, which was reported and ends the run
        request = hardware_requirement.eval(job)
        allowed: MutableSequence[Target] = list(binding_config.targets)
        # Before the check for a shortfall, which must not count targets that a filter excludes.
        for filter_config in binding_config.filters:
            allowed = await self._get_binding_filter(filter_config).get_targets(job, allowed)
        targets = {self._for_streamflow(target): target for target in allowed}
        config = BindingConfig(list(targets))
        num_locations = [(target, streamflows.locations) for streamflows, target in targets.items()]
        await self._schedule(job, config, hardware_requirement, request, num_locations)
        allocation = self.get_allocation(job.name)
        await self.folders.prepare(
            allocation.target, allocation.locations, job_name=job.name, storage_mib=storage_of(request)
        )
        num_nodes = targets[allocation.target].locations
        inputs = {name: token.value for name, token in job.inputs.items()}
        job_requests.note_job(
            job.name,
            job_requests.JobRequest(
                cores=request.cores,
                memory_mib=request.memory,
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
            cores=request.cores,
            memory_mib=request.memory,
        )

    def _get_binding_filter(self, config: FilterConfig) -> BindingFilter:
        if config.type != FILTER:
            return super()._get_binding_filter(config)
        if config.name not in self._filters:
            self._filters[config.name] = MedweaveFilter(config.name, context=self.context, **config.config)
        return self._filters[config.name]

    def _get_policy(self, config: Config) -> Policy:
        """Return ours if the file names none: StreamFlow's fills the first location before it uses the next."""
        return self._policy if config.name == _NO_POLICY else super()._get_policy(config)

    async def _get_locations(
        self,
        job: Job,
        hardware_requirement: Hardware,
        locations: int,
        scheduling_policy: Policy,
        available_locations: MutableMapping[str, AvailableLocation],
    ) -> MutableSequence[AvailableLocation]:
        """Use our policy also if only as many locations are free as the job needs: they may lack GPUs."""
        if isinstance(scheduling_policy, MedweavePolicy):
            return await scheduling_policy.choose(self.context, job, list(available_locations.values()), locations)
        return await super()._get_locations(
            job, hardware_requirement, locations, scheduling_policy, available_locations
        )

    def _is_gone(self, target: Target) -> bool:
        return self.context.deployment_manager.get_connector(target.deployment.name) is None

    def _for_streamflow(self, target: Target) -> Target:
        """Return the target as StreamFlow must see it: a queue is one location, whatever number of nodes the binding requests."""
        connector = self.context.deployment_manager.get_connector(target.deployment.name)
        kind = connector.type if isinstance(connector, FutureConnector) else type(connector)  # of a lazy deployment
        if not (isinstance(kind, GivesNodes) and kind.LOCATION_GIVES_NODES):
            return target
        copied = copy.copy(target)
        copied.locations = 1
        return copied

    async def _schedule(
        self,
        job: Job,
        binding_config: BindingConfig,
        hardware_requirement: HardwareRequirement | None,
        request: Hardware,
        targets: Sequence[tuple[Target, int]],
    ) -> None:
        """Run StreamFlow's scheduling, which waits forever, without a message, for a location that does not become available.

        It may wait for a busy location: the end of another job frees it.
        """
        gpus = job_requests.hints_of(job.name).gpus_min
        reported, lack = None, await find_shortfall(self.context.deployment_manager, targets, request, gpus=gpus)
        if lack is not None and lack.final:
            raise lack.error(job.name, request, gpus=gpus)
        clock = asyncio.get_running_loop().time
        since = clock()
        placing = asyncio.create_task(super().schedule(job, binding_config, hardware_requirement))
        try:
            while not (await asyncio.wait({placing}, timeout=CHECK_S))[0]:
                before = lack
                with contextlib.suppress(Exception):  # `placing` queries the same locations, and raises the error
                    lack = await find_shortfall(self.context.deployment_manager, targets, request, gpus=gpus)
                if lack is None:
                    since = clock()
                    if (
                        before is not None
                    ):  # missing locations are available: with retry_delay 0 StreamFlow would not notice
                        async with self.wait_queue:
                            self.wait_queue.notify_all()
                    continue
                waited_s = clock() - since
                if lack.final or waited_s >= LOCATION_DEADLINE_S:
                    raise lack.error(job.name, request, gpus=gpus, waited_s=round(waited_s))
                if lack != reported:
                    reported = lack
                    console.say(f"medweave: {job.name} waits: {'; '.join(lack.missing)}")
            placing.result()
        finally:
            placing.cancel()
