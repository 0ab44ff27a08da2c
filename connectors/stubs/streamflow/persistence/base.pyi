from abc import ABCMeta

from streamflow.core.context import StreamFlowContext
from streamflow.core.persistence import Database

class CachedDatabase(Database, metaclass=ABCMeta):
    def __init__(self, context: StreamFlowContext) -> None: ...
