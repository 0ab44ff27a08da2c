from abc import ABC, abstractmethod
from collections.abc import MutableMapping, MutableSequence
from typing import Any

from streamflow.core.context import SchemaEntity, StreamFlowContext
from streamflow.core.workflow import Workflow

class DatabaseLoadingContext(ABC):
    def __init__(self, database: Database) -> None: ...

class PersistableEntity:
    def __init__(self) -> None: ...

class Database(SchemaEntity):
    context: StreamFlowContext

    def __init__(self, context: StreamFlowContext) -> None: ...
    @abstractmethod
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
    @abstractmethod
    async def add_workflow(
        self, name: str, params: MutableMapping[str, Any], status: int, type: type[Workflow]
    ) -> int: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    async def get_deployment(self, deployment_id: int) -> MutableMapping[str, Any]: ...
    @abstractmethod
    async def get_input_ports(self, step_id: int) -> MutableSequence[MutableMapping[str, Any]]: ...
    @abstractmethod
    async def get_workflow(self, workflow_id: int) -> MutableMapping[str, Any]: ...
    @abstractmethod
    async def get_workflows_by_name(
        self, workflow_name: str, last_only: bool = False
    ) -> MutableSequence[MutableMapping[str, Any]]: ...
    @abstractmethod
    async def update_workflow(self, workflow_id: int, updates: MutableMapping[str, Any]) -> int: ...
