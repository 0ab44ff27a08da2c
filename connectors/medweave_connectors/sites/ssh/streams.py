"""Streams to and from commands at a machine, which end when the command has ended, and fail if it failed.

StreamFlow's streams drop the exit status, so half of a folder would count as complete.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import asyncssh
from streamflow.deployment.connector.ssh import SSHStreamReaderWrapper, SSHStreamWriterWrapper

from medweave_connectors.host.errors import StreamBroke, StreamCut
from medweave_connectors.host.transfer_reasons import known_reason

READ_BYTES = 2**16
PACKET_BYTES = 2**15  # OpenSSH takes no larger ones
TAIL_BYTES = 4000
LAST_OUTPUT_S = 2.0


class _Input(SSHStreamWriterWrapper):  # type: ignore[misc]
    """Standard input that is ended by `close`; StreamFlow's closes the session, and the exit status is lost."""

    async def write(self, data: Any) -> None:
        """Send in packets: of larger data, asyncssh would copy the rest after each packet."""
        rest = memoryview(data)
        while rest:
            self.stream.write(rest[:PACKET_BYTES])
            rest = rest[PACKET_BYTES:]
        await self.stream.drain()

    async def _close(self) -> None:
        self.stream.write_eof()


class _SSHStream:
    """A session whose standard error is read, so that it cannot block, and reported."""

    def __init__(
        self, session: AbstractAsyncContextManager[Any], script: str, what: str, first_input: bytes = b""
    ) -> None:
        """`script` is run in the session; `first_input` comes first in its input."""
        self._session, self._script, self._what, self._given = session, script, what, first_input
        self._errors = bytearray()
        self._process: Any = None
        self._draining: asyncio.Task[None] | None = None

    async def _open(self) -> Any:
        started = await self._session.__aenter__()
        self._process = started.process
        started.run(self._script)
        self._draining = asyncio.create_task(self._drain())
        if self._given:
            with contextlib.suppress(OSError):  # the exit status is checked later
                self._process.stdin.write(self._given)
        return self._process

    async def _drain(self) -> None:
        while data := await self._process.stderr.read(READ_BYTES):
            self._errors += data  # a line may come in many pieces
            del self._errors[:-TAIL_BYTES]

    async def _end(self) -> None:
        """Wait for the command, and raise its failure."""
        await self._process.wait_closed()
        if self._process.exit_status is None and self._process.exit_signal is None:
            raise StreamCut(self._what)
        await self._check()

    async def _check(self) -> None:
        if self._process.exit_status != 0:
            assert self._draining is not None
            await self._draining  # its last output may arrive after its end
            errors = self._errors.decode(errors="replace").strip()
            status = self._process.exit_status
            raise StreamBroke(f"{self._what} broke off: {known_reason(errors)} (exit status {status})", errors, status)

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
            if self._draining is not None:
                self._draining.cancel()
            await self._session.__aexit__(kind, error, trace)
        if isinstance(error, asyncssh.Error | OSError):
            raise StreamCut(self._what) from error

    async def _ended_early(self) -> None:
        """Raise the command's failure, if it stopped reading because it failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_S):
                await self._process.wait_closed()
        if self._process.exit_status:
            await self._check()

    async def _finish(self) -> None:
        raise NotImplementedError


class SSHReader(_SSHStream):
    """Standard output of a command."""

    async def __aenter__(self) -> Any:
        process = await self._open()
        process.stdin.write_eof()
        return SSHStreamReaderWrapper(process.stdout)

    async def _finish(self) -> None:
        while await self._process.stdout.read(READ_BYTES):
            pass  # readers of an archive stop before its padding
        await self._end()


class SSHWriter(_SSHStream):
    """Standard input of a command."""

    async def __aenter__(self) -> Any:
        self._input = _Input((await self._open()).stdin)
        return self._input

    async def _finish(self) -> None:
        await self._input.close()
        while await self._process.stdout.read(READ_BYTES):
            pass
        await self._end()
