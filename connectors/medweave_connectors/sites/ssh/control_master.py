"""Sessions through an open ControlMaster, by the `ssh` program: for sites that require a second factor for each new connection.

`ssh` exits with 255 for a lost connection and for a command with that exit code, and loses the number of a signal. Therefore a
shell at the site writes the command's exit status after its errors.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

READ_BYTES = 2**16
WATCH_S, LAST_OUTPUT_S = 0.5, 0.5
# Only the master is used: without it, ssh would open a new connection (and prompt at the terminal).
OPTIONS = ["-T", "-a", "-x"]
for _setting in (
    "ControlMaster=no",
    "ProxyCommand=false",
    "BatchMode=yes",
    "LogLevel=ERROR",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
):
    OPTIONS += ["-o", _setting]


class Errors:
    """Standard error of a command, without the mark that contains its exit status."""

    def __init__(self, stream: Any, mark: bytes) -> None:
        self._stream, self._mark = stream, mark
        self._ready, self._pending = bytearray(), b""
        self.ended = asyncio.Event()
        self.exit_status: int | None = None

    async def read(self, _most: int = READ_BYTES) -> bytes:
        """Return the next bytes; none at the end."""
        while not self._ready and not self.ended.is_set():
            if data := await self._stream.read(READ_BYTES):
                self._take(data)
            else:
                self._ready += self._pending
                self.ended.set()
        data, self._ready = bytes(self._ready), bytearray()
        return data

    async def readline(self) -> bytes:
        """Return the next line with its end, or the rest."""
        line = b""
        while b"\n" not in line and (data := await self.read()):
            line += data
        end = line.find(b"\n") + 1 or len(line)
        self._ready[:0] = line[end:]
        return line[:end]

    def _take(self, data: bytes) -> None:
        pending = self._pending + data
        place = pending.find(self._mark)
        if place < 0:  # the data may end with the start of the mark
            place = next(
                (
                    len(pending) - n
                    for n in range(min(len(self._mark), len(pending)), 0, -1)
                    if self._mark.startswith(pending[-n:])
                ),
                len(pending),
            )
        elif (end := pending.find(b"\n", place)) >= 0:
            self.exit_status = int(pending[place + len(self._mark) : end])
            pending = pending[:place] + pending[end + 1 :]
            place = len(pending)
        self._ready += pending[:place]
        self._pending = pending[place:]


class MasterProcess:
    """A command at the site, with the part of asyncssh's process interface in use. `exit_status` is None if unknown."""

    exit_signal = None  # a shell at the site has converted it to 128 plus its number

    def __init__(self, process: Any, transport: asyncio.SubprocessTransport) -> None:
        self._process, self._transport = process, transport
        self.stdin, self.stdout = process.stdin, process.stdout
        self._token = secrets.token_hex(8)
        self.stderr = Errors(process.stderr, f"\0medweave-end {self._token} ".encode())
        self._watching = asyncio.create_task(self._watch())

    def with_end_mark(self, script: str) -> str:
        """Wrap a script in a shell that survives a TERM to its group, to print the exit status."""
        return f"trap : TERM; (eval {shlex.quote(script)}); printf '\\000medweave-end {self._token} %s\\n' $? >&2"

    @property
    def exit_status(self) -> int | None:
        """Return the exit status that the command's shell reported."""
        return self.stderr.exit_status

    def is_closing(self) -> bool:
        """Return True if the session has ended."""
        return self._transport.get_returncode() is not None or self._transport.is_closing()

    def close(self) -> None:
        """Close the session; processes at the site are not ended by that."""
        self._watching.cancel()
        self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until all output was read; a task must read the errors."""
        await self.stderr.ended.wait()

    async def _watch(self) -> None:
        """Close the streams when `ssh` has ended: the master keeps them open even if `ssh` is killed."""
        try:
            await self._until_read()
        finally:  # also if this task dies: its readers must not wait forever
            self._transport.close()

    async def _until_read(self) -> None:
        while self._transport.get_returncode() is None:
            await asyncio.sleep(WATCH_S)
        idle = 0
        while idle < 2:  # with a slow reader, data may still be in the pipe
            await asyncio.sleep(LAST_OUTPUT_S)
            idle = 0 if self.stdout._buffer else idle + 1  # StreamReader has no public attribute for it


class MasterConnection:
    """An open ControlMaster; it belongs to the user, and stays open."""

    def __init__(self, words: Callable[..., list[str]]) -> None:
        """Create the connection; `words` builds the command line of `ssh` to the machine from options."""
        self._words = words
        self._is_lost = False

    def is_closed(self) -> bool:
        """Return True after the master refused a session, so that it is looked for again."""
        return self._is_lost

    def lost(self) -> None:
        """Note that the master refused a session."""
        self._is_lost = True

    def close(self) -> None:
        """Do nothing: other programs use the master."""

    async def wait_closed(self) -> None:
        """Do nothing: the master stays open."""

    async def create_process(self, command: str) -> MasterProcess:
        """Open a session in which the account's login shell runs the command."""
        process, transport = await _begin([*self._words(), command])
        return MasterProcess(process, transport)


class MasterForward:
    """An open ControlMaster of a jump host."""

    def __init__(self, words: Callable[..., list[str]]) -> None:
        """Create the forward; `words` builds the command line of `ssh` to the jump host from options."""
        self._words = words

    def command(self, host: str, port: int) -> list[str]:
        """Return the command whose input and output are a connection from the jump host to `host`."""
        return self._words("-W", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


async def _begin(words: list[str]) -> tuple[Any, asyncio.SubprocessTransport]:
    """Start a process as asyncio.create_subprocess_exec does; also return the transport, which closes the streams."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: asyncio.subprocess.SubprocessStreamProtocol(READ_BYTES, loop),
        *words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # the driver handles Ctrl-C
    )
    return asyncio.subprocess.Process(transport, protocol, loop), transport
