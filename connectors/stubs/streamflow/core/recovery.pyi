from abc import ABCMeta

from streamflow.core.context import SchemaEntity, StreamFlowContext

class CheckpointManager(SchemaEntity, metaclass=ABCMeta):
    def __init__(self, context: StreamFlowContext) -> None: ...

class FailureManager(SchemaEntity, metaclass=ABCMeta):
    def __init__(self, context: StreamFlowContext) -> None: ...
