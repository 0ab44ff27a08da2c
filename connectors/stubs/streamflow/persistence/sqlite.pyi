import asyncio
from collections.abc import MutableMapping, MutableSequence
from types import TracebackType
from typing import Any, Final

from streamflow.core.context import StreamFlowContext
from streamflow.core.workflow import Workflow
from streamflow.persistence.base import CachedDatabase

IN_MEMORY_SQLITE_CONNECTION: Final[str]

class SqliteConnection:
    connection: str
    mmap_size: int
    timeout: int
    init_db: bool
    _opening: asyncio.Event | None

    def __init__(self, connection: str, mmap_size: int, timeout: int, init_db: bool) -> None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None: ...
    async def close(self) -> None: ...

class SqliteDatabase(CachedDatabase):
    connection: SqliteConnection

    def __init__(
        self, context: StreamFlowContext, connection: str = ..., mmap_size: int = ..., timeout: int = 20
    ) -> None: ...
    async def close(self) -> None: ...
    @classmethod
    def get_schema(cls) -> str: ...
    async def add_deployment(
        self,
        name: str,
        type: str,
        config: MutableMapping[str, Any],
        external: bool,
        lazy: bool,
        scheduling_policy: MutableMapping[str, Any],
        workdir: str | None,
        wraps: MutableMapping[str, Any] | None,
    ) -> int: ...
    async def add_workflow(
        self, name: str, params: MutableMapping[str, Any], status: int, type: type[Workflow]
    ) -> int: ...
    async def get_deployment(self, deployment_id: int) -> MutableMapping[str, Any]: ...
    async def get_input_ports(self, step_id: int) -> MutableSequence[MutableMapping[str, Any]]: ...
    async def get_workflow(self, workflow_id: int) -> MutableMapping[str, Any]: ...
    async def get_workflows_by_name(
        self, workflow_name: str, last_only: bool = False
    ) -> MutableSequence[MutableMapping[str, Any]]: ...
    async def update_workflow(self, workflow_id: int, updates: MutableMapping[str, Any]) -> int: ...
