from collections.abc import MutableMapping
from typing import Any

from rdflib import Graph
from streamflow.core.context import StreamFlowContext
from streamflow.core.workflow import Workflow

class CWLWorkflow(Workflow):
    def __init__(
        self,
        context: StreamFlowContext,
        cwl_version: str,
        config: MutableMapping[str, Any],
        name: str | None = None,
        format_graph: Graph | None = None,
    ) -> None: ...
