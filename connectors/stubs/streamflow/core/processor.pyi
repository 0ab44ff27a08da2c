import asyncio
from abc import ABC, abstractmethod
from collections.abc import MutableSequence

from streamflow.core.deployment import Connector, ExecutionLocation, Target
from streamflow.core.workflow import CommandOutput, Job, Token, Workflow

class CommandOutputProcessor(ABC):
    name: str
    workflow: Workflow
    target: Target | None

    def __init__(self, name: str, workflow: Workflow, target: Target | None = None) -> None: ...
    async def _get_locations(self, connector: Connector | None, job: Job) -> MutableSequence[ExecutionLocation]: ...
    @abstractmethod
    async def process(
        self,
        job: Job,
        command_output: asyncio.Future[CommandOutput],
        connector: Connector | None = None,
        recoverable: bool = False,
    ) -> Token | None: ...
