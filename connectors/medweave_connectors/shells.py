"""A few open shells at a place: a login costs a tenth of a second or, at sites with many modules, some seconds.

The stock connectors have one shell, in which a command that hangs blocks all others, and run a command again when its shell
breaks. Here several wait side by side, and what was sent is never sent again. No streamflow in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from medweave_connectors.deadlines import ProgressDeadline
from medweave_connectors.stdin_script import here_document, is_long

SHELLS = 4
BEAT_S = 15
WAIT_S = 1.0
_BEAT = "medweave-beat"
_MARK_BYTES = 128  # at least the length of a mark or heartbeat: one may come in two pieces
# The counters change while a process of the session works: times of the processor (utime, stime, and those of its children),
# without the heartbeat's own processes. Where /proc or awk is missing, each heartbeat counts as progress.
_COUNTERS = (
    '{ pid = $1; sub(/^.*[)] /, ""); split($0, f, " "); '
    "if (f[4] == session && pid != own && f[2] != own) n += f[12] + f[13] + f[14] + f[15] } "
    'END { if (NR) print beat, n + 0; else print beat, "?" }'
)


class ShellLost(Exception):
    """The shell ended before the command's end was known."""


class TooManyShells(Exception):
    """The place opens no further shell now; it may do so later."""


class OpenShell(Protocol):
    """A POSIX shell that reads commands from its input."""

    @property
    def usable(self) -> bool:
        """False once it is known to have ended."""

    async def write(self, data: bytes) -> None:
        """Sends to its input."""

    async def read(self) -> bytes:
        """The next bytes of its output; none at its end."""

    async def close(self) -> None:
        """Ends it; it may have ended."""


class Shells:
    """Up to `SHELLS` shells, opened when they are needed.

    Args:
        open_shell: raises `TooManyShells` where the place opens no further one.
        where: the place, for people.
    """

    def __init__(self, open_shell: Callable[[], Awaitable[OpenShell]], where: str) -> None:
        self._open, self._where = open_shell, where
        self._free: list[OpenShell] = []
        self._most, self._num_open = SHELLS, 0
        self._changed = asyncio.Condition()
        self._token = secrets.token_hex(8)

    async def execute(self, line: str, timeout_s: float | None, silence_s: float | None = None) -> tuple[str, int]:
        """Runs a line once: (output and errors, exit code).

        Args:
            timeout_s: longest time, s; None for as long as it makes progress.
            silence_s: longest time without progress, s; None for the usual one.

        Raises:
            ShellLost: it is not known whether the line ran to its end.
            TimeoutError: it did not end in time; its shell is closed.
            NoProgress: it stopped; its shell is closed.
        """
        async with self._shell() as shell:
            deadline = ProgressDeadline("a command", self._where, silence_s)
            work = _execute(shell, line, self._token, deadline.progressed)
            return await asyncio.wait_for(deadline.guard(work), timeout_s)

    async def keep_at_most(self, number: int) -> None:
        """Uses so many shells from now on; those that are free beyond it are closed."""
        self._most = number
        while self._free and self._num_open > self._most:
            await self._discard(self._free.pop())

    async def close(self) -> None:
        """Closes all that are free."""
        while self._free:
            await self._discard(self._free.pop())

    @contextlib.asynccontextmanager
    async def _shell(self) -> AsyncIterator[OpenShell]:
        shell = await self._take()
        try:
            yield shell
        except BaseException:  # its next words would be read as another command's
            await self._discard(shell)
            raise
        if self._num_open > self._most:
            await self._discard(shell)
        else:
            self._free.append(shell)
            await self._notify()

    async def _take(self) -> OpenShell:
        """A free shell, or a new one; waits for one where there are as many as there may be."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._free) or self._num_open < self._most)
                shell = self._free.pop() if self._free else None
                self._num_open += shell is None
            if shell is None:
                shell = await self._opened()
            elif not shell.usable:
                await self._discard(shell)
                shell = None
            if shell is not None:
                return shell

    async def _opened(self) -> OpenShell | None:
        """A new shell, with its heartbeat; None where the place opens no further one now."""
        try:
            shell = await self._open()
        except BaseException as error:
            await self._leave()
            if not isinstance(error, TooManyShells):
                raise
            await asyncio.sleep(WAIT_S)
            return None
        try:
            await shell.write(_heartbeat(self._token))
        except BaseException:
            await self._discard(shell)
            raise
        return shell

    async def _discard(self, shell: OpenShell) -> None:
        await shell.close()
        await self._leave()

    async def _leave(self) -> None:
        self._num_open -= 1
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify()


def _heartbeat(token: str) -> bytes:
    """A line for an open shell: from now on it prints the counters of its processes every `BEAT_S`."""
    awk = shlex.join(["awk", "-v", f"beat={_BEAT} {token}"]) + ' -v session="$session" -v own="$own" '
    beat = (
        f"cat /proc/[0-9]*/stat 2> /dev/null | {awk}{shlex.quote(_COUNTERS)} 2> /dev/null || echo {_BEAT} {token} '?'"
    )
    line = (
        "( trap 'kill $pause; exit' TERM; own= session=; "
        "{ read -r own _ _ _ _ session _ < /proc/self/stat; } 2> /dev/null; "
        f"while kill -0 $$; do sleep {BEAT_S} > /dev/null 2>&1 & pause=$!; wait $pause; {beat} || exit; done "
        ") < /dev/null 2> /dev/null & beat=$!; trap 'kill $beat' EXIT"
    )
    return f"{line}\n".encode()


async def _execute(shell: OpenShell, line: str, token: str, progressed: Callable[[int], None]) -> tuple[str, int]:
    mark = f"medweave-{secrets.token_hex(8)}"
    await shell.write(_script(line, mark))
    answer = _Answer(mark, token)
    while answer.exit_code is None:
        data = await shell.read()
        if not data:
            raise ShellLost("the connection was lost")
        if answer.feed(data):
            progressed(len(data))
    return answer.text, answer.exit_code


def _script(line: str, mark: str) -> bytes:
    """Return the input of an open shell that runs a line in a child shell; its syntax errors, `exit` and `cd` stay there."""
    if is_long(line):
        head, _, document = here_document("", line, mark).partition("\n")
        run = f"{head} 2>&1"
    else:
        run, document = f"sh -c {shlex.quote(line)} 2>&1 < /dev/null", ""
    return f"echo {mark} begin; {run}; echo {mark} $?\n{document}".encode(errors="surrogateescape")


class _Answer:
    """What a shell prints, taken apart: the output of the line, between its marks, and the heartbeats."""

    def __init__(self, mark: str, token: str) -> None:
        self._begin = f"{mark} begin\n".encode()
        self._end = re.compile(rb"%s (\d+)\n" % mark.encode())
        self._beat = re.compile(rb"%s %s (\d+|[?])\n" % (_BEAT.encode(), token.encode()))
        self._seen, self._looked, self._counters = bytearray(), 0, b""
        self.exit_code: int | None = None
        self.text = ""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; return whether they show progress."""
        self._seen += data
        num_bytes, shows_progress = len(data), False
        for beat in reversed(list(self._beat.finditer(self._seen, self._looked))):
            shows_progress |= beat[1] == b"?" or beat[1] != self._counters
            self._counters = beat[1]
            num_bytes -= len(beat[0])
            del self._seen[beat.start() : beat.end()]
        if end := self._end.search(self._seen, self._looked):
            self.exit_code = int(end[1])
            begin = self._seen.find(self._begin) + len(self._begin)
            self.text = self._seen[begin : end.start()].decode(errors="replace").strip()
        self._looked = max(0, len(self._seen) - _MARK_BYTES)
        return shows_progress or num_bytes > 0
