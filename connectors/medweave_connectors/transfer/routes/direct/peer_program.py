"""An agent at one end of a copy, and the messages that it sends to the driver. No streamflow in here."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from medweave_connectors.host.deadlines import UNRESPONSIVE_S
from medweave_connectors.host.shells import OpenShell
from medweave_connectors.transfer.capabilities import Endpoint
from medweave_connectors.transfer.routes.direct import commands

START_S = 30.0  # a login may take some time
SILENCE_S = UNRESPONSIVE_S  # the agent sends a message every five seconds
LEAVE_S = 5.0
LOST = "the connection to it was lost"  # which says nothing of the cause
_STOP = b"stop\n"


class PeerProgramFailed(Exception):
    """An agent failed.

    Attributes:
        why: a message that names no file.
        tar: exit status and last messages of tar, where tar failed: see `commands.tar_errors`.
    """

    def __init__(self, why: str, tar: Mapping[str, Any] | None = None) -> None:
        super().__init__(why)
        self.why, self.tar = why, tar


class PeerProgram:
    """The agent at one end, as a context: at its exit the agent and its tar have ended, where the site can be reached.

    Attributes:
        moved: bytes of the stream, as last reported.

    Args:
        program: its text, framed.
        on_moved: called with each further number of bytes that the agent reports.
    """

    def __init__(self, end: Endpoint, program: bytes, on_moved: Callable[[int], None] = lambda _: None) -> None:
        self.end, self.moved = end, 0
        self._program, self._on_moved = program, on_moved
        self._shell: OpenShell
        self._buffer = bytearray()

    async def __aenter__(self) -> PeerProgram:
        try:
            self._shell = await self.end.open(commands.boot_command())
        except Exception:  # the connector's own error, with any message
            raise PeerProgramFailed("no session could be opened there") from None
        try:
            await self._write(self._program)  # it loads while the other end is contacted
        except BaseException:
            await self._shell.close()
            raise
        return self

    async def start_task(self, settings: Mapping[str, Any], *, sends: bool) -> None:
        """Send the settings of the task."""
        await self._write(commands.task_line(settings, sends=sends))

    async def send_line(self, **facts: Any) -> None:
        """Send a further line; why the agent does not read it is reported by `wait_for`.

        Raises:
            PeerProgramFailed: the connection was lost.
        """
        with _connection_errors():
            await self._shell.write(json.dumps(facts).encode() + b"\n")

    async def wait_for(self, key: str, *, within_s: float = SILENCE_S) -> Any:
        """Return the first message with a key.

        Args:
            within_s: the longest time between two messages.

        Raises:
            PeerProgramFailed: the agent failed, or sends nothing any more.
        """
        with _connection_errors():
            while True:
                async with asyncio.timeout(within_s):
                    message = await self._next()
                self._count(message)
                if "failed" in message:
                    raise PeerProgramFailed(str(message["failed"]), message.get("tar"))
                if key in message:
                    return message

    def _count(self, message: Mapping[str, Any]) -> None:
        counts = (message[key] for key in ("beat", "moved", "ended") if isinstance(message.get(key), int))
        moved = next(counts, 0)
        if moved > self.moved:
            self._on_moved(moved - self.moved)
            self.moved = moved

    async def _write(self, data: bytes) -> None:
        try:
            with _connection_errors():
                await self._shell.write(data)
        except PeerProgramFailed:
            await self.wait_for("failed", within_s=LEAVE_S)  # the agent may have sent the cause
            raise

    async def _next(self) -> dict[str, Any]:
        searched = 0  # bytes of the buffer without a line end
        while True:
            end = self._buffer.find(b"\n", searched)
            if end >= 0:
                line, searched = bytes(self._buffer[:end]), 0
                del self._buffer[: end + 1]
                if (message := commands.parse_message(line)) is not None:
                    return message
            elif len(self._buffer) > commands.MOST_BYTES:
                raise PeerProgramFailed("a line of its output is too long")
            elif data := await self._shell.read():
                searched = len(self._buffer)
                self._buffer += data
            else:
                raise PeerProgramFailed("its agent ended without a message")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing may still write there when the next route is tried.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LEAVE_S):
                await self._shell.write(_STOP)
                while await self._shell.read():
                    pass
        await self._shell.close()


@contextlib.contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except PeerProgramFailed:
        raise
    except TimeoutError:
        raise PeerProgramFailed("it no longer responds") from None
    except Exception:  # of asyncssh or aiohttp
        raise PeerProgramFailed(LOST) from None
