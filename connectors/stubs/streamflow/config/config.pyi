from collections.abc import MutableMapping
from pathlib import PurePosixPath
from typing import Any

from streamflow.core.config import Config

class WorkflowConfig(Config):
    deployments: MutableMapping[str, Any]
    binding_filters: MutableMapping[str, Any]

    def __init__(self, name: str, config: MutableMapping[str, Any]) -> None: ...
    def get(self, path: PurePosixPath, name: str, default: Any | None = None) -> Any | None: ...
    def propagate(self, path: PurePosixPath, name: str, default: Any | None = None) -> Any | None: ...
    def put(self, path: PurePosixPath, name: str, value: Any) -> None: ...
