"""Streams to and from programs of this machine, which end when the program has ended, and fail when it failed.

The stock ones drop the exit status, and a program that writes many errors waits for ever for someone who reads them.
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
HELD_BYTES = 2**19  # asyncio stops reading a pipe when it holds twice as much
GRACE_S = 5.0


class _Program(StreamWrapper):
    """A program whose errors are read while it runs, and told when it fails."""

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
            limit=HELD_BYTES,
        )
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._errors += data
            del self._errors[:-TAIL_BYTES]

    async def close(self) -> None:
        """Waits for the program.

        Raises:
            StreamBroke: it failed.
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
        """Takes what is still written: a process has ended for asyncio when its pipes have been read."""

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
        # What is not wanted any more may put away what it has begun, and is killed then.
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sign)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.gather(self._process.wait(), self._discard()), GRACE_S)


class Reader(_Program):
    """What a program writes to its standard output. It is read by a thread: asyncio would copy each byte three times."""

    async def __aenter__(self) -> Reader:
        self._output, output = os.pipe()
        self._reading: asyncio.Future[bytearray] | None = None
        self._left = False  # a program of its own that it has left behind may hold the pipe for ever
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
        """Up to `size` bytes; none at the end."""
        work = asyncio.to_thread(filled, self._output, size or READ_BYTES, lambda: self._left)
        self._reading = asyncio.ensure_future(work)
        return await asyncio.shield(self._reading)

    async def write(self, data: bytes) -> None:
        """There is no way to write."""
        raise TypeError("a reader")

    async def _finish(self) -> None:
        await self._discard()

    async def _discard(self) -> None:
        if self._reading is not None:  # nobody has waited for its end
            await asyncio.wait([self._reading])
        while await self.read(READ_BYTES):
            pass

    async def _end(self) -> None:
        try:
            await super()._end()
        finally:
            self._left = True
            if self._reading is not None:  # while it is read, its number may not become that of another file
                await asyncio.wait([self._reading])
            os.close(self._output)


class Writer(_Program):
    """The standard input of a program."""

    async def __aenter__(self) -> Writer:
        await self._start(stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL)
        return self

    async def read(self, size: int | None = None) -> bytes:
        """There is nothing to read."""
        raise TypeError("a writer")

    async def write(self, data: bytes) -> None:
        """Sends.

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
        with contextlib.suppress(ConnectionError):  # how it ended is looked at next
            await self._process.stdin.wait_closed()
