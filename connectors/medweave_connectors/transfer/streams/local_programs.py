"""Streams to and from programs of this machine, which end when the program has ended, and fail when it failed.

StreamFlow's own streams drop the exit status, and nothing reads their program's standard error, which blocks when it is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from streamflow.core.data import StreamWrapper

from medweave_connectors.host.command_log import CommandLog
from medweave_connectors.host.error_tail import READ_BYTES, ErrorTail
from medweave_connectors.transfer.agent.encoding import read_full

PIPE_BYTES = 2**20
HELD_BYTES = 2**19  # asyncio stops reading a pipe when it holds twice as much
GRACE_S = 5.0


class _LocalProgram(StreamWrapper):
    """A program of this machine; the end of the stream waits for it."""

    def __init__(self, words: Sequence[str], what: str) -> None:
        super().__init__(None)
        self._words = words
        self._process: asyncio.subprocess.Process
        self._errors = ErrorTail(what)
        self._ended = False
        self._logging = CommandLog("local", "driver").command("stream")

    async def _start(self, **streams: Any) -> None:
        self._logged = self._logging.__enter__()
        self._process = await asyncio.create_subprocess_exec(
            *self._words,
            **streams,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
            limit=HELD_BYTES,
        )
        assert self._process.stderr is not None
        self._errors.start(self._process.stderr.read)

    async def close(self) -> None:
        """Wait for the program.

        Raises:
            StreamBroke: it failed.
        """
        if self._ended:
            return
        self._ended = True
        await self._finish()
        code = await self._process.wait()
        self._logged.exit_code = code if code >= 0 else 128 - code
        await self._errors.raise_if_failed(code)

    async def _finish(self) -> None:
        raise NotImplementedError

    async def _discard(self) -> None:
        """Read the rest of the output: for asyncio, a process ends only when its pipes have been read."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self._logging)
            try:
                if kind is None:
                    await self.close()
            finally:
                await asyncio.shield(self._stop())
                self._errors.stop()

    async def _stop(self) -> None:
        # SIGTERM lets the program remove its unfinished files.
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal_number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.gather(self._process.wait(), self._discard()), GRACE_S)


class LocalReader(_LocalProgram):
    """The standard output of a program of this machine. A thread reads it: asyncio would copy each byte three times."""

    async def __aenter__(self) -> LocalReader:
        self._output, output = os.pipe()
        self._reading: asyncio.Future[bytearray] | None = None
        self._is_abandoned = False  # a background process of the program may keep the pipe open
        try:
            with contextlib.suppress(OSError):  # the account's limit for pipes is reached
                fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            await self._start(stdin=asyncio.subprocess.DEVNULL, stdout=output)
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(output)
        return self

    async def read(self, size: int | None = None) -> bytearray:
        """Return up to `size` bytes; none at the end."""
        work = asyncio.to_thread(read_full, self._output, size or READ_BYTES, lambda: self._is_abandoned)
        self._reading = asyncio.ensure_future(work)
        return await asyncio.shield(self._reading)

    async def write(self, data: bytes) -> None:
        """Raise TypeError: this stream is only read."""
        raise TypeError("a reader")

    async def _finish(self) -> None:
        await self._discard()

    async def _discard(self) -> None:
        if self._reading is not None:  # a read that was cancelled may still run in its thread
            await asyncio.wait([self._reading])
        while await self.read(READ_BYTES):
            pass

    async def _stop(self) -> None:
        try:
            await super()._stop()
        finally:
            self._is_abandoned = True
            if self._reading is not None:  # while the thread reads, the descriptor may not be reused
                await asyncio.wait([self._reading])
            os.close(self._output)


class LocalWriter(_LocalProgram):
    """The standard input of a program of this machine."""

    async def __aenter__(self) -> LocalWriter:
        await self._start(stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL)
        return self

    async def read(self, size: int | None = None) -> bytes:
        """Raise TypeError: this stream is only written."""
        raise TypeError("a writer")

    async def write(self, data: bytes) -> None:
        """Send.

        Raises:
            StreamBroke: the program has ended already, with an error.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except ConnectionError:
            await self.close()
            raise

    async def _finish(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(ConnectionError):  # the exit status is checked next
            await self._process.stdin.wait_closed()
