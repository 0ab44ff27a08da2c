"""Persistent shell in a container for the engine's many short commands, each of which takes milliseconds."""

from __future__ import annotations

import asyncio
import contextlib

from medweave_connectors.sites.pods.api.channels import STDOUT
from medweave_connectors.sites.pods.exec.execution import Execution

COMMAND = ["sh"]


class PodShell:
    """A shell over an execution. It is read all the time, so that its end is known before anything more is sent."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._listener = asyncio.create_task(self._listen())

    @property
    def usable(self) -> bool:
        """Return False once the shell has ended."""
        return not self._listener.done()

    async def write(self, data: bytes) -> None:
        """Send to its input."""
        await self._execution.write(data)

    async def read(self) -> bytes:
        """Return the next bytes of its output; none at its end, in every later call too.

        Raises:
            Exception: the error that ended the listener.
        """
        if self._listener.done() and self._pieces.empty():
            if not self._listener.cancelled():
                self._listener.result()
            return b""
        return await self._pieces.get()

    async def close(self) -> None:
        """Close the connection, which ends an idle shell."""
        self._listener.cancel()
        with contextlib.suppress(Exception):  # the connection may be gone
            await self._execution.close()

    async def _listen(self) -> None:
        try:
            async for channel, data in self._execution.output():
                if channel == STDOUT:
                    self._pieces.put_nowait(data)
        finally:
            self._pieces.put_nowait(b"")
