from abc import ABC, abstractmethod
from collections.abc import MutableMapping, MutableSequence, MutableSet, Set

from streamflow.core.config import BindingConfig
from streamflow.core.context import SchemaEntity, StreamFlowContext
from streamflow.core.deployment import Connector, ExecutionLocation, Target
from streamflow.core.workflow import Job, Status

class Hardware:
    cores: float
    memory: float
    storage: MutableMapping[str, Storage]

    def __init__(
        self, cores: float = 0.0, memory: float = 0.0, storage: MutableMapping[str, Storage] | None = None
    ) -> None: ...
    def get_mount_point(self, path: str) -> str: ...
    def get_size(self, path: str) -> float: ...

class HardwareRequirement(ABC):
    @abstractmethod
    def eval(self, job: Job) -> Hardware: ...

class JobAllocation:
    job: str
    target: Target
    locations: MutableSequence[ExecutionLocation]
    status: Status
    hardware: Hardware

    def __init__(
        self,
        job: str,
        target: Target,
        locations: MutableSequence[ExecutionLocation],
        status: Status,
        hardware: Hardware,
    ) -> None: ...

class AvailableLocation:
    hardware: Hardware | None
    location: ExecutionLocation
    slots: int | None
    wraps: AvailableLocation | None

    def __init__(
        self,
        name: str,
        deployment: str,
        hostname: str,
        local: bool = False,
        service: str | None = None,
        slots: int | None = None,
        stacked: bool = False,
        hardware: Hardware | None = None,
        wraps: AvailableLocation | None = None,
    ) -> None: ...
    @property
    def deployment(self) -> str: ...
    @property
    def hostname(self) -> str: ...
    @property
    def local(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def service(self) -> str | None: ...
    def __str__(self) -> str: ...

class LocationAllocation:
    name: str
    deployment: str
    jobs: MutableSequence[str]

    def __init__(self, name: str, deployment: str) -> None: ...

class Policy(SchemaEntity):
    @abstractmethod
    async def get_location(
        self,
        context: StreamFlowContext,
        job: Job,
        hardware_requirement: Hardware,
        available_locations: MutableMapping[str, AvailableLocation],
        jobs: MutableMapping[str, JobAllocation],
        locations: MutableMapping[str, MutableMapping[str, LocationAllocation]],
    ) -> AvailableLocation | None: ...

class Scheduler(SchemaEntity):
    context: StreamFlowContext
    job_allocations: MutableMapping[str, JobAllocation]
    location_allocations: MutableMapping[str, MutableMapping[str, LocationAllocation]]

    def __init__(self, context: StreamFlowContext) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    def get_allocation(self, job_name: str) -> JobAllocation: ...
    def get_connector(self, job_name: str) -> Connector: ...
    def get_locations(
        self, job_name: str, statuses: MutableSequence[Status] | None = None
    ) -> MutableSequence[ExecutionLocation]: ...
    @abstractmethod
    async def notify_status(self, job_name: str, status: Status) -> None: ...
    @abstractmethod
    async def schedule(
        self, job: Job, binding_config: BindingConfig, hardware_requirement: HardwareRequirement | None
    ) -> None: ...

class Storage:
    mount_point: str
    paths: MutableSet[str]
    size: float
    bind: str | None

    def __init__(
        self, mount_point: str, size: float, paths: Set[str] | None = None, bind: str | None = None
    ) -> None: ...
