import asyncio
import builtins
from abc import ABCMeta
from collections.abc import MutableMapping, MutableSequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.scheduling import AvailableLocation

class FutureConnector(Connector, metaclass=ABCMeta):
    type: builtins.type[Connector]
    external: bool
    parameters: MutableMapping[str, Any]
    deploy_event: asyncio.Event
    _connector: Connector | None

    def __init__(
        self, name: str, config_dir: str, connector_type: builtins.type[Connector], external: bool, **kwargs: Any
    ) -> None: ...
    @property
    def connector(self) -> Connector: ...
    async def copy_local_to_remote(
        self, src: str, dst: str, locations: MutableSequence[ExecutionLocation], read_only: bool = False
    ) -> None: ...
    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None: ...
    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None: ...
    async def deploy(self, external: bool) -> None: ...
    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]: ...
    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]: ...
    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]: ...
    def get_schema(self) -> str: ...  # type: ignore[override]  # of an instance, in StreamFlow
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
    async def undeploy(self, external: bool) -> None: ...

class FutureMeta(ABCMeta): ...
class FutureAware(metaclass=FutureMeta): ...
