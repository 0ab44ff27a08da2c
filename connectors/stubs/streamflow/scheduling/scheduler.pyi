import asyncio
from collections.abc import MutableMapping, MutableSequence

from streamflow.core.config import BindingConfig, Config
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import BindingFilter, FilterConfig
from streamflow.core.scheduling import AvailableLocation, Hardware, HardwareRequirement, Policy, Scheduler
from streamflow.core.workflow import Job, Status

class DefaultScheduler(Scheduler):
    wait_queue: asyncio.Condition

    def __init__(self, context: StreamFlowContext, retry_delay: int | None = None) -> None: ...
    def _get_binding_filter(self, config: FilterConfig) -> BindingFilter: ...
    async def _get_locations(
        self,
        job: Job,
        hardware_requirement: Hardware,
        locations: int,
        scheduling_policy: Policy,
        available_locations: MutableMapping[str, AvailableLocation],
    ) -> MutableSequence[AvailableLocation]: ...
    def _get_policy(self, config: Config) -> Policy: ...
    async def close(self) -> None: ...
    @classmethod
    def get_schema(cls) -> str: ...
    async def notify_status(self, job_name: str, status: Status) -> None: ...
    async def schedule(
        self, job: Job, binding_config: BindingConfig, hardware_requirement: HardwareRequirement | None
    ) -> None: ...
