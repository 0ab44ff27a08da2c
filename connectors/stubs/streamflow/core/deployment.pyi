from abc import abstractmethod
from collections.abc import MutableMapping, MutableSequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from streamflow.core.config import Config
from streamflow.core.context import SchemaEntity, StreamFlowContext
from streamflow.core.data import StreamWrapper
from streamflow.core.persistence import PersistableEntity
from streamflow.core.scheduling import AvailableLocation
from streamflow.core.workflow import Job

class ExecutionLocation:
    deployment: str
    environment: MutableMapping[str, str]
    hostname: str | None
    local: bool
    mounts: MutableMapping[str, str]
    name: str
    service: str | None
    wraps: ExecutionLocation | None

    def __init__(
        self,
        name: str,
        deployment: str,
        environment: MutableMapping[str, str] | None = None,
        hostname: str | None = None,
        local: bool = False,
        mounts: MutableMapping[str, str] | None = None,
        service: str | None = None,
        stacked: bool = False,
        wraps: ExecutionLocation | None = None,
    ) -> None: ...
    def __str__(self) -> str: ...

class BindingFilter(SchemaEntity):
    name: str

    def __init__(self, name: str) -> None: ...
    @abstractmethod
    async def get_targets(self, job: Job, targets: MutableSequence[Target]) -> MutableSequence[Target]: ...

class Connector(SchemaEntity):
    deployment_name: str
    config_dir: str
    transferBufferSize: int

    def __init__(self, deployment_name: str, config_dir: str, transferBufferSize: int) -> None: ...
    @abstractmethod
    async def copy_local_to_remote(
        self, src: str, dst: str, locations: MutableSequence[ExecutionLocation], read_only: bool = False
    ) -> None: ...
    @abstractmethod
    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None: ...
    @abstractmethod
    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None: ...
    @abstractmethod
    async def deploy(self, external: bool) -> None: ...
    @abstractmethod
    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]: ...
    @abstractmethod
    async def run(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = ...,
        stderr: int | str = ...,
        capture_output: bool = False,
        timeout: int | None = None,
        job_name: str | None = None,
    ) -> tuple[str, int] | None: ...
    @abstractmethod
    async def undeploy(self, external: bool) -> None: ...
    @abstractmethod
    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]: ...
    @abstractmethod
    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]: ...

class DeploymentManager(SchemaEntity):
    context: StreamFlowContext

    def __init__(self, context: StreamFlowContext) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    async def deploy(self, deployment_config: DeploymentConfig) -> None: ...
    @abstractmethod
    def get_connector(self, deployment_name: str) -> Connector | None: ...
    @abstractmethod
    async def undeploy(self, deployment_name: str) -> None: ...
    @abstractmethod
    async def undeploy_all(self) -> None: ...

class DeploymentConfig(PersistableEntity):
    name: str
    type: str
    config: MutableMapping[str, Any]
    external: bool
    lazy: bool
    scheduling_policy: Config
    workdir: str | None
    wraps: WrapsConfig | None

    def __init__(
        self,
        name: str,
        type: str,
        config: MutableMapping[str, Any],
        external: bool = False,
        lazy: bool = True,
        scheduling_policy: Config | None = None,
        workdir: str | None = None,
        wraps: WrapsConfig | None = None,
    ) -> None: ...

class FilterConfig(PersistableEntity):
    name: str
    type: str
    config: MutableMapping[str, Any]

    def __init__(self, name: str, type: str, config: MutableMapping[str, Any]) -> None: ...

class Target(PersistableEntity):
    deployment: DeploymentConfig
    locations: int
    service: str | None
    workdir: str

    def __init__(
        self, deployment: DeploymentConfig, locations: int = 1, service: str | None = None, workdir: str | None = None
    ) -> None: ...

class WrapsConfig:
    deployment: str
    service: str | None

    def __init__(self, deployment: str, service: str | None = None) -> None: ...
