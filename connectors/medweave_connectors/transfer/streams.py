"""Streams to and from local programs, which end when the program has ended, and fail if it failed.

StreamFlow's streams drop the exit status, and block forever if a program writes many errors.
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
from medweave_connectors.host.errors import StreamBroke
from medweave_connectors.host.transfer_reasons import known_reason
from medweave_connectors.transfer.agent.encoding import filled

READ_BYTES, TAIL_BYTES = 2**16, 2000
PIPE_BYTES = 2**20
BUFFER_BYTES = 2**19  # asyncio stops reading a pipe when its buffer has twice as much
GRACE_S = 5.0


class _Program(StreamWrapper):
    """A program whose standard error is read while it runs, and reported when it fails."""

    def __init__(self, words: Sequence[str], what: str) -> None:
        super().__init__(None)
        self._words, self._what = words, what
        self._process: asyncio.subprocess.Process
        self._errors = bytearray()
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
            limit=BUFFER_BYTES,
        )
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._errors += data
            del self._errors[:-TAIL_BYTES]

    async def close(self) -> None:
        """Wait for the program.

        Raises:
            StreamBroke: the program failed.
        """
        if self._ended:
            return
        self._ended = True
        await self._finish()
        code = await self._process.wait()
        self._logged.exit_code = code if code >= 0 else 128 - code
        await self._draining
        if code:
            errors = self._errors.decode(errors="replace").strip()
            raise StreamBroke(f"{self._what} broke off: {known_reason(errors)} (exit status {code})", errors, code)

    async def _finish(self) -> None:
        raise NotImplementedError

    async def _discard(self) -> None:
        """Read the remaining output: for asyncio a process has ended only when its pipes have been read."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self._logging)
            try:
                if kind is None:
                    await self.close()
            finally:
                await asyncio.shield(self._end())
                self._draining.cancel()

    async def _end(self) -> None:
        # A program that is no longer needed gets time to clean up before it is killed.
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sign)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.gather(self._process.wait(), self._discard()), GRACE_S)


class ProgramReader(_Program):
    """Standard output of a program, read by a thread: asyncio would copy each byte three times."""

    async def __aenter__(self) -> ProgramReader:
        self._output, output = os.pipe()
        self._reading: asyncio.Future[bytearray] | None = None
        self._is_closed = False  # a background child of the program may keep the pipe open forever
        try:
            with contextlib.suppress(OSError):  # an account has too many
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
        work = asyncio.to_thread(filled, self._output, size or READ_BYTES, lambda: self._is_closed)
        self._reading = asyncio.ensure_future(work)
        return await asyncio.shield(self._reading)

    async def write(self, data: bytes) -> None:
        """Raise TypeError: it is a reader."""
        raise TypeError("a reader")

    async def _finish(self) -> None:
        await self._discard()

    async def _discard(self) -> None:
        if self._reading is not None:  # it may still run
            await asyncio.wait([self._reading])
        while await self.read(READ_BYTES):
            pass

    async def _end(self) -> None:
        try:
            await super()._end()
        finally:
            self._is_closed = True
            if self._reading is not None:  # while it is read, its number may not become that of another file
                await asyncio.wait([self._reading])
            os.close(self._output)


class ProgramWriter(_Program):
    """The standard input of a program."""

    async def __aenter__(self) -> ProgramWriter:
        await self._start(stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL)
        return self

    async def read(self, size: int | None = None) -> bytes:
        """Raise TypeError: it is a writer."""
        raise TypeError("a writer")

    async def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            StreamBroke: the program has ended with an error.
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
