from abc import ABC, abstractmethod
from collections.abc import MutableMapping, MutableSequence
from enum import IntEnum
from typing import Any, Self

from streamflow.core.context import StreamFlowContext
from streamflow.core.persistence import Database, DatabaseLoadingContext, PersistableEntity

class Command(ABC):
    step: Step

    def __init__(self, step: Step) -> None: ...
    @abstractmethod
    async def execute(self, job: Job) -> CommandOutput: ...

class CommandOptions: ...

class CommandOutput:
    value: Any
    status: Status

    def __init__(self, value: Any, status: Status) -> None: ...
    def update(self, value: Any) -> CommandOutput: ...

class CommandToken:
    name: str | None
    position: int | None
    value: Any

    def __init__(self, name: str | None, position: int | None, value: Any) -> None: ...

class CommandTokenProcessor(ABC):
    name: str | None

    def __init__(self, name: str | None) -> None: ...
    @classmethod
    async def _load(cls, row: MutableMapping[str, Any], loading_context: DatabaseLoadingContext) -> Self: ...
    async def _save_additional_params(self, database: Database) -> MutableMapping[str, Any]: ...
    @abstractmethod
    def bind(self, token: Token, position: int | None, options: CommandOptions) -> CommandToken: ...
    @abstractmethod
    def check_type(self, token: Token) -> bool: ...

class Job:
    name: str
    workflow_id: int
    inputs: MutableMapping[str, Token]
    output_directory: str | None

    def __init__(
        self,
        name: str,
        workflow_id: int,
        inputs: MutableMapping[str, Token],
        input_directory: str | None,
        output_directory: str | None,
        tmp_directory: str | None,
    ) -> None: ...

class Port(PersistableEntity):
    name: str
    workflow: Workflow

    def __init__(self, workflow: Workflow, name: str) -> None: ...
    def close(self, consumer: str) -> None: ...
    def empty(self) -> bool: ...
    async def get(self, consumer: str) -> Token: ...
    def put(self, token: Token) -> None: ...

class Status(IntEnum):
    WAITING = 0
    FIREABLE = 1
    RUNNING = 2
    SKIPPED = 3
    COMPLETED = 4
    FAILED = 5
    CANCELLED = 6
    ROLLBACK = 7
    RECOVERY = 8
    RECOVERED = 9

class Step(PersistableEntity, ABC):
    input_ports: MutableMapping[str, str]
    name: str
    output_ports: MutableMapping[str, str]
    status: Status
    terminated: bool
    workflow: Workflow

    def __init__(self, name: str, workflow: Workflow) -> None: ...
    def get_input_port(self, name: str | None = None) -> Port: ...
    def get_input_ports(self) -> MutableMapping[str, Port]: ...
    @abstractmethod
    async def restore(self, on_tokens: MutableMapping[str, MutableSequence[Token]]) -> None: ...
    @abstractmethod
    async def run(self) -> None: ...
    @abstractmethod
    async def terminate(self, status: Status) -> None: ...

class Token(PersistableEntity):
    value: Any
    tag: str

    def __init__(self, value: Any, tag: str = "0", recoverable: bool = False) -> None: ...
    @property
    def recoverable(self) -> bool: ...
    @recoverable.setter
    def recoverable(self, recoverable: bool) -> None: ...
    def update(self, value: Any) -> Token: ...

class Workflow(PersistableEntity):
    context: StreamFlowContext
    config: MutableMapping[str, Any]
    name: str
    input_ports: MutableMapping[str, str]
    output_ports: MutableMapping[str, str]
    ports: MutableMapping[str, Port]
    steps: MutableMapping[str, Step]
    type: str | None

    def __init__(
        self, context: StreamFlowContext, config: MutableMapping[str, Any], name: str | None = None
    ) -> None: ...
    def get_input_port(self, name: str) -> Port: ...
    def get_input_ports(self) -> MutableMapping[str, Port]: ...
