from collections.abc import MutableMapping, MutableSequence

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.base import BaseConnector

class LocalConnector(BaseConnector):
    def __init__(self, deployment_name: str, config_dir: str, transferBufferSize: int = ...) -> None: ...
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
    @classmethod
    def get_schema(cls) -> str: ...
    async def undeploy(self, external: bool) -> None: ...
