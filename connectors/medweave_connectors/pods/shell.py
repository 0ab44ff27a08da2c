"""A shell that stays open in a container, for the engine's many small commands: one takes milliseconds."""

from __future__ import annotations

from typing import Any

from streamflow.deployment.shell import BaseShell
from streamflow.deployment.stream import BaseStreamWrapper

from medweave_connectors.pods.execution import STDOUT, Execution

COMMAND = ["sh"]
BUFFER_BYTES = 2**16


class PodShell(BaseShell):  # type: ignore[misc]
    """StreamFlow's protocol with a shell, over an execution."""

    def __init__(self, execution: Execution) -> None:
        super().__init__(COMMAND, BUFFER_BYTES)
        self._execution = execution
        self._reader = self._writer = _Line(execution)

    async def _close(self) -> None:
        await self._execution.close()


class _Line(BaseStreamWrapper):  # type: ignore[misc]
    def __init__(self, execution: Execution) -> None:
        super().__init__(execution)
        self._execution, self._pieces = execution, execution.output()

    async def read(self, size: int | None = None) -> bytes:
        """What has come, without waiting for `size` bytes; empty at the end."""
        async for channel, data in self._pieces:
            if channel == STDOUT:
                return data
        return b""

    async def write(self, data: Any) -> None:
        """Sends a command line."""
        await self._execution.write(data)
