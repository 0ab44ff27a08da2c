"""Sessions through an open ControlMaster, by the `ssh` program: for sites that want a second factor for each new connection.

`ssh` ends with 255 both for a lost connection and for a command that ended so, and a signal's number is lost on the way. So
the command's end is written by a shell at the site, behind its errors.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

READ_BYTES = 2**16
WATCH_S, LAST_WORDS_S = 0.5, 0.5
# Only the master is used: where it is gone, ssh would connect anew (and ask at the terminal).
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
    """What the command writes to stderr, less the mark that tells its end."""

    def __init__(self, stream: Any, mark: bytes) -> None:
        self._stream, self._mark = stream, mark
        self._ready, self._held = bytearray(), b""
        self.ended = asyncio.Event()
        self.exit_status: int | None = None

    async def read(self, _most: int = READ_BYTES) -> bytes:
        """The next bytes; none at the end."""
        while not self._ready and not self.ended.is_set():
            if data := await self._stream.read(READ_BYTES):
                self._take(data)
            else:
                self._ready += self._held
                self.ended.set()
        data, self._ready = bytes(self._ready), bytearray()
        return data

    async def readline(self) -> bytes:
        """The next line with its end, or what is left."""
        line = b""
        while b"\n" not in line and (data := await self.read()):
            line += data
        end = line.find(b"\n") + 1 or len(line)
        self._ready[:0] = line[end:]
        return line[:end]

    def _take(self, data: bytes) -> None:
        held = self._held + data
        place = held.find(self._mark)
        if place < 0:  # its beginning may be there
            place = next(
                (
                    len(held) - n
                    for n in range(min(len(self._mark), len(held)), 0, -1)
                    if self._mark.startswith(held[-n:])
                ),
                len(held),
            )
        elif (end := held.find(b"\n", place)) >= 0:
            self.exit_status = int(held[place + len(self._mark) : end])
            held = held[:place] + held[end + 1 :]
            place = len(held)
        self._ready += held[:place]
        self._held = held[place:]


class MasterProcess:
    """A command at the site, with what medweave uses of asyncssh's processes. `exit_status` is None where its end is not known."""

    exit_signal = None  # a shell at the site has made it 128 and its number

    def __init__(self, process: Any, transport: asyncio.SubprocessTransport) -> None:
        self._process, self._transport = process, transport
        self.stdin, self.stdout = process.stdin, process.stdout
        self._token = secrets.token_hex(8)
        self.stderr = Errors(process.stderr, f"\0medweave-end {self._token} ".encode())
        self._watching = asyncio.create_task(self._watch())

    def telling_its_end(self, script: str) -> str:
        """The script as a child of a shell that outlives a TERM to its group, to print the exit status."""
        return f"trap : TERM; (eval {shlex.quote(script)}); printf '\\000medweave-end {self._token} %s\\n' $? >&2"

    @property
    def exit_status(self) -> int | None:
        """As the command's own shell saw it."""
        return self.stderr.exit_status

    def is_closing(self) -> bool:
        """Whether the session has ended."""
        return self._transport.get_returncode() is not None or self._transport.is_closing()

    def close(self) -> None:
        """Ends the session; what runs at the site is not ended by that."""
        self._watching.cancel()
        self._transport.close()

    async def wait_closed(self) -> None:
        """Until all is said; its errors must be read meanwhile."""
        await self.stderr.ended.wait()

    async def _watch(self) -> None:
        """The streams end with `ssh`: the master holds them, too, and keeps them open when `ssh` is killed."""
        try:
            await self._until_read()
        finally:  # also where this task dies: its readers must not wait for ever
            self._transport.close()

    async def _until_read(self) -> None:
        while self._transport.get_returncode() is None:
            await asyncio.sleep(WATCH_S)
        idle = 0
        while idle < 2:  # a reader may be slow: what it has not taken yet holds up what is still in the pipe
            await asyncio.sleep(LAST_WORDS_S)
            idle = 0 if self.stdout._buffer else idle + 1  # a StreamReader has no other word for it


class MasterConnection:
    """An open ControlMaster; it belongs to the user, and stays open."""

    def __init__(self, words: Callable[..., list[str]]) -> None:
        """`words` makes the command line of `ssh` to the machine from options."""
        self._words = words
        self._is_lost = False

    def is_closed(self) -> bool:
        """Whether to look again for the master: after a session that it did not give."""
        return self._is_lost

    def lost(self) -> None:
        """Notes that the master gave no session."""
        self._is_lost = True

    def close(self) -> None:
        """Nothing: others use it."""

    async def wait_closed(self) -> None:
        """Nothing to wait for."""

    async def create_process(self, command: str) -> MasterProcess:
        """Opens a session, in which the login shell of the account runs the command."""
        process, transport = await _begin([*self._words(), command])
        return MasterProcess(process, transport)


class MasterForward:
    """An open ControlMaster of a jump host."""

    def __init__(self, words: Callable[..., list[str]]) -> None:
        """`words` makes the command line of `ssh` to the jump host from options."""
        self._words = words

    def command(self, host: str, port: int) -> list[str]:
        """A program whose input and output are a connection from the jump host to `host`."""
        return self._words("-W", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


async def _begin(words: list[str]) -> tuple[Any, asyncio.SubprocessTransport]:
    """As asyncio.create_subprocess_exec does it, with the transport, which closes the streams."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: asyncio.subprocess.SubprocessStreamProtocol(READ_BYTES, loop),
        *words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours to handle
    )
    return asyncio.subprocess.Process(transport, protocol, loop), transport
