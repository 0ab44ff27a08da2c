from abc import ABCMeta
from collections.abc import MutableMapping, MutableSequence
from typing import Any

from streamflow.core.workflow import CommandOutput, Status, Token, Workflow

class CWLCommandOutput(CommandOutput):
    def __init__(self, value: Any, status: Status, exit_code: int | None = 0) -> None: ...

class CWLTokenProcessor(metaclass=ABCMeta):
    file_format: str | None
    secondary_files: MutableSequence[Any]

    def __init__(
        self,
        name: str,
        workflow: Workflow,
        token_type: str | MutableSequence[str] | None = None,
        enum_symbols: MutableSequence[str] | None = None,
        expression_lib: MutableSequence[str] | None = None,
        file_format: str | None = None,
        full_js: bool = False,
        load_contents: bool | None = None,
        load_listing: Any = None,
        only_propagate_secondary_files: bool = True,
        secondary_files: MutableSequence[Any] | None = None,
        streamable: bool = False,
    ) -> None: ...
    async def _process_file_token(self, inputs: MutableMapping[str, Token], token_value: Any) -> Any: ...
