"""Streams to and from commands at a machine, which end when the command has ended, and fail when it failed.

The stock ones drop the exit status: half of a folder passes for all of it.
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
LAST_WORDS_S = 2.0


class _Input(SSHStreamWriterWrapper):
    """Closing it ends the input; the stock one closes the session, and how the command ended is never known."""

    async def write(self, data: Any) -> None:
        """Sends. Of more than a packet, asyncssh would move all that is left each time that one has gone."""
        rest = memoryview(data)
        while rest:
            self.stream.write(rest[:PACKET_BYTES])
            rest = rest[PACKET_BYTES:]
        await self.stream.drain()

    async def _close(self) -> None:
        self.stream.write_eof()


class _Stream:
    """A session whose errors are read, so that much of them cannot hold it up, and told."""

    def __init__(self, session: AbstractAsyncContextManager[Any], script: str, what: str, given: bytes = b"") -> None:
        """`script` is run in the session; `given` comes first in its input."""
        self._session, self._script, self._what, self._given = session, script, what, given
        self._errors = bytearray()
        self._process: Any = None
        self._draining: asyncio.Task[None] | None = None

    async def _open(self) -> Any:
        started = await self._session.__aenter__()
        self._process = started.process
        started.run(self._script)
        self._draining = asyncio.create_task(self._drain())
        if self._given:
            with contextlib.suppress(OSError):  # how it ended is looked at later
                self._process.stdin.write(self._given)
        return self._process

    async def _drain(self) -> None:
        while data := await self._process.stderr.read(READ_BYTES):
            self._errors += data  # a line may come in many pieces: the last of them say nothing of the cause
            del self._errors[:-TAIL_BYTES]

    async def _end(self) -> None:
        """Waits for the command; its failure is ours."""
        await self._process.wait_closed()
        if self._process.exit_status is None and self._process.exit_signal is None:
            raise StreamCut(self._what)
        await self._check()

    async def _check(self) -> None:
        if self._process.exit_status != 0:
            assert self._draining is not None
            await self._draining  # what it said last may come after its end
            told = self._errors.decode(errors="replace").strip()
            status = self._process.exit_status
            raise StreamBroke(f"{self._what} broke off: {known_reason(told)} (exit status {status})", told, status)

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
        """A command that fails takes no more input: its own words are told, where they still come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._process.wait_closed()
        if self._process.exit_status:
            await self._check()

    async def _finish(self) -> None:
        raise NotImplementedError


class Reader(_Stream):
    """What a command writes to its standard output."""

    async def __aenter__(self) -> Any:
        process = await self._open()
        process.stdin.write_eof()
        return SSHStreamReaderWrapper(process.stdout)

    async def _finish(self) -> None:
        while await self._process.stdout.read(READ_BYTES):
            pass  # an archive's readers stop before its padding
        await self._end()


class Writer(_Stream):
    """The standard input of a command."""

    async def __aenter__(self) -> Any:
        self._input = _Input((await self._open()).stdin)
        return self._input

    async def _finish(self) -> None:
        await self._input.close()
        while await self._process.stdout.read(READ_BYTES):
            pass
        await self._end()
