"""Streams to and from commands at an ssh site, which end when the command has ended, and fail when it failed.

StreamFlow's own streams drop the exit status: half of a folder would count as all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import asyncssh
from streamflow.deployment.connector.ssh import SSHStreamReaderWrapper, SSHStreamWriterWrapper

from medweave_connectors.host.error_tail import READ_BYTES, ErrorTail
from medweave_connectors.host.errors import StreamCut

PACKET_BYTES = 2**15  # OpenSSH accepts no larger packets
LAST_MESSAGE_S = 2.0


class _Input(SSHStreamWriterWrapper):
    """Standard input of a command. Closing it ends the input; StreamFlow's closes the session, and the exit status is lost."""

    async def write(self, data: Any) -> None:
        """Send in packets: asyncssh moves the unsent rest of a larger write after each packet."""
        rest = memoryview(data)
        while rest:
            self.stream.write(rest[:PACKET_BYTES])
            rest = rest[PACKET_BYTES:]
        await self.stream.drain()

    async def _close(self) -> None:
        self.stream.write_eof()


class _SSHStream:
    """A session that runs a command.

    Args:
        script: run in the session.
        what: the stream, for messages; no file names.
        first_input: sent to the command before anything else.
    """

    def __init__(
        self, session: AbstractAsyncContextManager[Any], script: str, what: str, first_input: bytes = b""
    ) -> None:
        self._session, self._script, self._what, self._first_input = session, script, what, first_input
        self._errors = ErrorTail(what)
        self._process: Any = None

    async def _open(self) -> Any:
        started = await self._session.__aenter__()
        self._process = started.process
        started.run(self._script)
        self._errors.start(self._process.stderr.read)
        if self._first_input:
            with contextlib.suppress(OSError):  # the exit status is checked later
                self._process.stdin.write(self._first_input)
        return self._process

    async def _wait(self) -> None:
        """Wait for the command.

        Raises:
            StreamBroke: it failed; StreamCut where its end is not known.
        """
        await self._process.wait_closed()
        if self._process.exit_status is None and self._process.exit_signal is None:
            raise StreamCut(self._what)
        await self._errors.raise_if_failed(self._process.exit_status)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._finish()
            elif isinstance(error, asyncssh.Error | OSError):
                await self._ended_early()
        except (asyncssh.Error, OSError) as lost:
            raise StreamCut(self._what) from lost
        finally:
            self._errors.stop()
            await self._session.__aexit__(kind, error, trace)
        if isinstance(error, asyncssh.Error | OSError):
            raise StreamCut(self._what) from error

    async def _ended_early(self) -> None:
        """Report the message of a command that failed while its input was sent, where it still arrives."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_MESSAGE_S):
                await self._process.wait_closed()
        if self._process.exit_status:
            await self._errors.raise_if_failed(self._process.exit_status)

    async def _finish(self) -> None:
        raise NotImplementedError


class SSHReader(_SSHStream):
    """The standard output of a command."""

    async def __aenter__(self) -> Any:
        process = await self._open()
        process.stdin.write_eof()
        return SSHStreamReaderWrapper(process.stdout)

    async def _finish(self) -> None:
        while await self._process.stdout.read(READ_BYTES):
            pass  # readers of an archive stop before its padding
        await self._wait()


class SSHWriter(_SSHStream):
    """The standard input of a command."""

    async def __aenter__(self) -> Any:
        self._input = _Input((await self._open()).stdin)
        return self._input

    async def _finish(self) -> None:
        await self._input.close()
        while await self._process.stdout.read(READ_BYTES):
            pass
        await self._wait()
