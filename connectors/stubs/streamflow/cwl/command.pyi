from collections.abc import MutableMapping, MutableSequence, Sequence
from types import ModuleType
from typing import Any

import cwl_utils.types
from streamflow.core.workflow import CommandOptions, CommandTokenProcessor, Job, Step
from streamflow.cwl.processor import CWLCommandOutput
from streamflow.data.remotepath import StreamFlowPath
from streamflow.workflow.command import TokenizedCommand

def _adjust_cwl_output(base_path: StreamFlowPath, job_name: str, path_processor: ModuleType, value: Any) -> Any: ...
def _adjust_input(job_name: str, input_: Any, path_processor: ModuleType, src_path: str, dst_path: str) -> bool: ...

class CWLCommand(TokenizedCommand):
    environment: MutableMapping[str, str]
    expression_lib: MutableSequence[str]
    full_js: bool
    initial_work_dir: str | MutableSequence[Any] | None
    is_shell_command: bool
    success_codes: MutableSequence[int] | None
    stderr: str | None
    stdin: str | None
    stdout: str | None
    time_limit: int | str | None

    def __init__(
        self,
        step: Step,
        processors: MutableSequence[CommandTokenProcessor] | None = None,
        absolute_initial_workdir_allowed: bool = False,
        base_command: MutableSequence[str] | None = None,
        environment: MutableMapping[str, str] | None = None,
        expression_lib: MutableSequence[str] | None = None,
        failure_codes: Sequence[int] | None = None,
        full_js: bool = False,
        initial_work_dir: str | MutableSequence[Any] | None = None,
        inplace_update: bool = False,
        is_shell_command: bool = False,
        success_codes: Sequence[int] | None = None,
        step_stderr: str | None = None,
        step_stdin: str | None = None,
        step_stdout: str | None = None,
        time_limit: int | str | None = None,
    ) -> None: ...
    async def execute(self, job: Job) -> CWLCommandOutput: ...

class CWLCommandOptions(CommandOptions):
    context: cwl_utils.types.CWLParameterContext
    expression_lib: MutableSequence[str] | None
    full_js: bool

    def __init__(
        self,
        context: cwl_utils.types.CWLParameterContext,
        expression_lib: MutableSequence[str] | None = None,
        full_js: bool = False,
    ) -> None: ...
