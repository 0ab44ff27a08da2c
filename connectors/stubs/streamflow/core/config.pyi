from collections.abc import MutableMapping, MutableSequence
from typing import Any

from referencing import Registry, Resource
from streamflow.core.deployment import FilterConfig, Target

class Config:
    name: str
    type: str
    config: MutableMapping[str, Any]

    def __init__(self, name: str, type: str, config: MutableMapping[str, Any]) -> None: ...

class BindingConfig:
    targets: MutableSequence[Target]
    filters: MutableSequence[FilterConfig]

    def __init__(
        self, targets: MutableSequence[Target], filters: MutableSequence[FilterConfig] | None = None
    ) -> None: ...

class Schema:
    configs: MutableMapping[str, str]
    registry: Registry

    def __init__(self, configs: MutableMapping[str, str]) -> None: ...
    def get_config(self, version: str) -> Resource: ...
