import asyncio
from collections.abc import MutableSequence
from typing import Any

import cwl_utils.types
from streamflow.core.data import DataLocation
from streamflow.core.deployment import Connector
from streamflow.core.workflow import CommandOutput, Job, Port, Token
from streamflow.cwl.workflow import CWLWorkflow
from streamflow.data.remotepath import StreamFlowPath
from streamflow.workflow.port import JobPort
from streamflow.workflow.step import ExecuteStep, InputInjectorStep, TransferStep

class CWLExecuteStep(ExecuteStep):
    expression_lib: MutableSequence[str] | None
    full_js: bool
    recoverable: bool | str

    def __init__(
        self,
        name: str,
        workflow: CWLWorkflow,
        job_port: JobPort,
        recoverable: bool | str,
        expression_lib: MutableSequence[str] | None = None,
        full_js: bool = False,
    ) -> None: ...
    async def _retrieve_output(
        self,
        job: Job,
        output_name: str,
        output_port: Port,
        command_output: asyncio.Future[CommandOutput],
        connector: Connector | None = None,
    ) -> None: ...

class CWLInputInjectorStep(InputInjectorStep):
    def __init__(self, name: str, workflow: CWLWorkflow, job_port: JobPort) -> None: ...
    async def process_input(self, job: Job, token_value: Any) -> Token: ...

class CWLTransferStep(TransferStep):
    prefix_path: bool
    writable: bool

    def __init__(
        self, name: str, workflow: CWLWorkflow, job_port: JobPort, prefix_path: bool = True, writable: bool = False
    ) -> None: ...
    async def _update_listing(
        self,
        job: Job,
        token_value: cwl_utils.types.CWLDirectoryType,
        dst_path: StreamFlowPath | None = None,
        src_location: DataLocation | None = None,
    ) -> MutableSequence[cwl_utils.types.CWLFileType | cwl_utils.types.CWLDirectoryType]: ...
    async def _update_file_token(
        self,
        job: Job,
        token_value: cwl_utils.types.CWLFileType | cwl_utils.types.CWLDirectoryType,
        dst_path: StreamFlowPath | None = None,
    ) -> cwl_utils.types.CWLFileType | cwl_utils.types.CWLDirectoryType: ...
    async def transfer(self, job: Job, token: Token) -> Token: ...
