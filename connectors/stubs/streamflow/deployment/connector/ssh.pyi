from collections.abc import MutableMapping, MutableSequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.scheduling import AvailableLocation, Hardware
from streamflow.deployment.connector.base import BaseConnector
from streamflow.deployment.stream import BaseStreamWrapper

class SSHStreamReaderWrapper(BaseStreamWrapper):
    closed: bool

    async def close(self) -> None: ...
    async def write(self, data: Any) -> None: ...

class SSHStreamWriterWrapper(BaseStreamWrapper):
    async def read(self, n: int = -1) -> bytes: ...  # type: ignore[override]  # differs from its base in StreamFlow
    async def _close(self) -> None: ...
    async def write(self, data: Any) -> None: ...

class SSHConfig:
    client_keys: MutableSequence[str]
    connect_timeout: int
    hostname: str
    tunnel: SSHConfig | None
    username: str

    def __init__(
        self,
        check_host_key: bool,
        client_keys: MutableSequence[str],
        connect_timeout: int,
        hostname: str,
        password_file: str | None,
        ssh_key_passphrase_file: str | None,
        tunnel: SSHConfig | None,
        username: str,
    ) -> None: ...

class SSHConnector(BaseConnector):
    checkHostKey: bool
    connectTimeout: int
    maxConcurrentSessions: int
    retries: int
    sshKey: str | None
    sshKeyPassphraseFile: str | None
    username: str
    tunnel: SSHConfig | None
    nodes: MutableMapping[str, SSHConfig]
    hardware: MutableMapping[str, Hardware]

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        nodes: MutableSequence[Any],
        username: str | None = None,
        checkHostKey: bool = True,
        connectTimeout: int = 30,
        dataTransferConnection: str | MutableMapping[str, Any] | None = None,
        file: str | None = None,
        maxConcurrentSessions: int = 10,
        maxConnections: int = 1,
        retries: int = 3,
        retryDelay: int = 5,
        passwordFile: str | None = None,
        services: MutableMapping[str, str] | None = None,
        sharedPaths: MutableSequence[str] | None = None,
        sshKey: str | None = None,
        sshKeyPassphraseFile: str | None = None,
        tunnel: MutableMapping[str, Any] | None = None,
        transferBufferSize: int = ...,
    ) -> None: ...
    async def _get_available_location(self, location: str) -> Hardware: ...
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
    @classmethod
    def get_schema(cls) -> str: ...
    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]: ...
    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]: ...
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
