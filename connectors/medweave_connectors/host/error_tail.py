"""The end of a program's standard error: read while the program runs, reported where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from medweave_connectors.host.errors import StreamBroke
from medweave_connectors.host.transfer_reasons import known_reason

READ_BYTES = 2**16
TAIL_BYTES = 4000


class ErrorTail:
    """The last bytes that a program at one end of a stream writes to its standard error.

    Args:
        what: the stream, for messages; no file names.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._tail = bytearray()
        self._task: asyncio.Task[None] | None = None

    def start(self, read: Callable[[int], Awaitable[bytes]]) -> None:
        """Read in the background: a program blocks once its unread errors fill the pipe."""
        self._task = asyncio.create_task(self._drain(read))

    def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()

    async def raise_if_failed(self, exit_status: int | None) -> None:
        """Check the program's exit status.

        Args:
            exit_status: None after a signal.

        Raises:
            StreamBroke: it is not 0.
        """
        if exit_status == 0:
            return
        if self._task is not None:
            await self._task  # the last message may arrive after the exit status
        text = self._tail.decode(errors="replace").strip()
        raise StreamBroke(
            f"{self._what} broke off: {known_reason(text)} (exit status {exit_status})", text, exit_status
        )

    async def _drain(self, read: Callable[[int], Awaitable[bytes]]) -> None:
        while data := await read(READ_BYTES):
            self._tail += data
            del self._tail[:-TAIL_BYTES]
