from collections.abc import MutableMapping, MutableSequence
from typing import Any

from streamflow.core.workflow import CommandOutput, Status, Token, Workflow

class CWLCommandOutput(CommandOutput):
    def __init__(self, value: Any, status: Status, exit_code: int | None = 0) -> None: ...

class CWLTokenProcessor:
    file_format: str | None
    secondary_files: MutableSequence[Any]

    def __init__(self, name: str, workflow: Workflow, *, file_format: str | None = None) -> None: ...
    async def _process_file_token(self, inputs: MutableMapping[str, Token], token_value: Any) -> Any: ...
