from collections.abc import MutableMapping
from typing import Any

from streamflow.config.schema import SfSchema

class SfValidator:
    schema: SfSchema

    def __init__(self) -> None: ...
    def validate_file(self, streamflow_file: str) -> MutableMapping[str, Any]: ...
    def validate(self, streamflow_config: MutableMapping[str, Any]) -> MutableMapping[str, Any]: ...
