from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Any

from streamflow.core.data import DataManager
from streamflow.core.deployment import DeploymentManager
from streamflow.core.persistence import Database
from streamflow.core.recovery import CheckpointManager, FailureManager
from streamflow.core.scheduling import Scheduler

class SchemaEntity(ABC):
    @classmethod
    @abstractmethod
    def get_schema(cls) -> str: ...

class StreamFlowContext:
    config: MutableMapping[str, Any]
    database: Database
    data_manager: DataManager
    deployment_manager: DeploymentManager
    failure_manager: FailureManager
    scheduler: Scheduler

    def __init__(
        self,
        config: MutableMapping[str, Any],
        checkpoint_manager_class: type[CheckpointManager],
        database_class: type[Database],
        data_manager_class: type[DataManager],
        deployment_manager_class: type[DeploymentManager],
        failure_manager_class: type[FailureManager],
        scheduler_class: type[Scheduler],
    ) -> None: ...
    async def close(self) -> None: ...
