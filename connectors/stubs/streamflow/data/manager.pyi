from collections.abc import MutableSequence

from streamflow.core.context import StreamFlowContext
from streamflow.core.data import DataLocation, DataManager, DataType
from streamflow.core.deployment import Connector, ExecutionLocation

async def _copy(
    src_connector: Connector,
    src_location: ExecutionLocation,
    src: str,
    dst_connector: Connector,
    dst_locations: MutableSequence[ExecutionLocation],
    dst: str,
    writable: bool,
) -> None: ...

class _RemotePathMapper:
    def __init__(self, context: StreamFlowContext) -> None: ...
    def get(
        self, path: str, data_type: DataType | None = None, deployment: str | None = None, name: str | None = None
    ) -> MutableSequence[DataLocation]: ...
    def put(self, path: str, data_location: DataLocation, recursive: bool = False) -> DataLocation: ...

class DefaultDataManager(DataManager):
    path_mapper: _RemotePathMapper

    def __init__(self, context: StreamFlowContext) -> None: ...
    async def close(self) -> None: ...
    def get_data_locations(
        self,
        path: str,
        deployment: str | None = None,
        location_name: str | None = None,
        data_type: DataType | None = None,
    ) -> MutableSequence[DataLocation]: ...
    @classmethod
    def get_schema(cls) -> str: ...
    def register_path(
        self, location: ExecutionLocation, path: str, relpath: str | None = None, data_type: DataType = ...
    ) -> DataLocation: ...
    def register_relation(self, src_location: DataLocation, dst_location: DataLocation) -> None: ...
    async def transfer_data(
        self,
        src_location: ExecutionLocation,
        src_path: str,
        dst_locations: MutableSequence[ExecutionLocation],
        dst_path: str,
        writable: bool = False,
    ) -> None: ...
