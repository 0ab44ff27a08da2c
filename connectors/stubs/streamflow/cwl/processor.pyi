from typing import Any

from streamflow.core.workflow import CommandOutput, Status

class CWLCommandOutput(CommandOutput):
    def __init__(self, value: Any, status: Status, exit_code: int | None = 0) -> None: ...
