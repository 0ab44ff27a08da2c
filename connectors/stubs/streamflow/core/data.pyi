import asyncio
from abc import ABC, abstractmethod
from collections.abc import MutableSequence
from enum import Enum
from typing import Any

from streamflow.core.context import SchemaEntity, StreamFlowContext
from streamflow.core.deployment import ExecutionLocation

class DataType(Enum):
    PRIMARY = 0
    SYMBOLIC_LINK = 1
    INVALID = 2

class DataLocation:
    available: asyncio.Event
    data_type: DataType
    location: ExecutionLocation
    path: str
    relpath: str

    def __init__(
        self, location: ExecutionLocation, path: str, relpath: str, data_type: DataType, available: bool = False
    ) -> None: ...
    @property
    def deployment(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def service(self) -> str | None: ...
    @property
    def wraps(self) -> ExecutionLocation | None: ...

class DataManager(SchemaEntity):
    context: StreamFlowContext

    def __init__(self, context: StreamFlowContext) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    def get_data_locations(
        self,
        path: str,
        deployment: str | None = None,
        location_name: str | None = None,
        data_type: DataType | None = None,
    ) -> MutableSequence[DataLocation]: ...
    @abstractmethod
    def register_path(
        self, location: ExecutionLocation, path: str, relpath: str | None = None, data_type: DataType = ...
    ) -> DataLocation: ...
    @abstractmethod
    def register_relation(self, src_location: DataLocation, dst_location: DataLocation) -> None: ...
    @abstractmethod
    async def transfer_data(
        self,
        src_location: ExecutionLocation,
        src_path: str,
        dst_locations: MutableSequence[ExecutionLocation],
        dst_path: str,
        writable: bool = False,
    ) -> None: ...

class StreamWrapper(ABC):
    stream: Any

    def __init__(self, stream: Any) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    async def read(self, size: int | None = None) -> Any: ...
    @abstractmethod
    async def write(self, data: Any) -> Any: ...
