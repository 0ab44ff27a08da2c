from collections.abc import MutableMapping
from typing import Any

import cwl_utils.parser.utils
from streamflow.config.config import WorkflowConfig
from streamflow.core.context import StreamFlowContext
from streamflow.core.workflow import Port, Step, Workflow
from streamflow.cwl.command import CWLCommand
from streamflow.cwl.workflow import CWLWorkflow

def _create_command(
    cwl_element: cwl_utils.parser.CommandLineTool,
    cwl_name_prefix: str,
    schema_def_types: MutableMapping[str, Any],
    context: MutableMapping[str, Any],
    step: Step,
) -> CWLCommand: ...
def _inject_value(value: Any) -> Any: ...

class CWLTranslator:
    context: StreamFlowContext
    name: str
    output_directory: str
    cwl_definition: cwl_utils.parser.CommandLineTool | cwl_utils.parser.ExpressionTool | cwl_utils.parser.Workflow
    cwl_inputs: MutableMapping[str, Any]
    cwl_inputs_path: str | None
    input_ports: MutableMapping[str, Port]
    output_ports: MutableMapping[str, Port]
    scatter: MutableMapping[str, Any]
    workflow_config: WorkflowConfig

    def __init__(
        self,
        context: StreamFlowContext,
        name: str,
        output_directory: str,
        cwl_definition: cwl_utils.parser.CommandLineTool | cwl_utils.parser.ExpressionTool | cwl_utils.parser.Workflow,
        cwl_inputs: MutableMapping[str, Any],
        cwl_inputs_path: str | None,
        workflow_config: WorkflowConfig,
    ) -> None: ...
    def _inject_input(
        self, workflow: Workflow, global_name: str, port_name: str, port: Port, output_directory: str | None, value: Any
    ) -> None: ...
    def _inject_inputs(self, workflow: Workflow) -> None: ...
    def _recursive_translate(
        self,
        workflow: CWLWorkflow,
        cwl_element: cwl_utils.parser.CommandLineTool
        | cwl_utils.parser.ExpressionTool
        | cwl_utils.parser.Workflow
        | cwl_utils.parser.WorkflowStep,
        context: MutableMapping[str, Any],
        name_prefix: str,
        cwl_name_prefix: str,
    ) -> None: ...
    def _translate_command_line_tool(
        self,
        workflow: CWLWorkflow,
        cwl_element: cwl_utils.parser.CommandLineTool | cwl_utils.parser.ExpressionTool,
        context: MutableMapping[str, Any],
        name_prefix: str,
        cwl_name_prefix: str,
    ) -> None: ...
