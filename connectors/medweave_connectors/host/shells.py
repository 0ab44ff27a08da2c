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

from medweave_connectors.host.deadlines import UNRESPONSIVE_S, ProgressDeadline
from medweave_connectors.host.stdin_script import here_document, is_long

SHELLS = 4
PROBE_S = 150  # four times in the longest silence
WAIT_S = 1.0
_MARK_BYTES = 128  # at least the length of a mark: one may come in two pieces
# Processor time (utime, stime and those of ended children) of a shell's descendants: it changes while one of them works.
_COUNTERS = (
    '{ pid = $1; sub(/^.*[)] /, ""); split($0, f, " "); parent[pid] = f[2]; time[pid] = f[12] + f[13] + f[14] + f[15] } '
    "END { for (pid in parent) { for (p = pid; p in parent && p != shell; p = parent[p]); if (p == shell) sum += time[pid] } "
    "print sum + 0 }"
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
            answer = _Answer()
            deadline = ProgressDeadline("a command", self._where, silence_s)
            probing = asyncio.create_task(self._probe(answer, deadline))
            try:
                work = _execute(shell, line, answer, deadline.progressed)
                return await asyncio.wait_for(deadline.guard(work), timeout_s)
            finally:
                probing.cancel()

    async def _probe(self, answer: _Answer, deadline: ProgressDeadline) -> None:
        """Count processor time that a long command has used as progress; so does a place where it cannot be measured."""
        counters = ""
        while True:
            await asyncio.sleep(PROBE_S)
            try:
                shell = await self._open()
            except Exception:  # the command itself may still be reached
                deadline.progressed()
                continue
            try:
                line = f"cat /proc/[0-9]*/stat 2>/dev/null | awk -v shell={answer.shell} {shlex.quote(_COUNTERS)}"
                text, code = await asyncio.wait_for(_execute(shell, line, _Answer()), UNRESPONSIVE_S)
            except Exception:  # the command has all of its silence left to answer
                continue
            finally:
                await shell.close()
            if code != 0 or text != counters:
                deadline.progressed()
            counters = text

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
        """Return a new shell; None where the place opens no further one now."""
        try:
            return await self._open()
        except BaseException as error:
            await self._leave()
            if not isinstance(error, TooManyShells):
                raise
            await asyncio.sleep(WAIT_S)
            return None

    async def _discard(self, shell: OpenShell) -> None:
        try:
            await shell.close()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self._num_open -= 1
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()  # the first waiter may have been cancelled


async def _execute(
    shell: OpenShell, line: str, answer: _Answer, progressed: Callable[[int], None] = lambda num_bytes: None
) -> tuple[str, int]:
    await shell.write(_script(line, answer.mark))
    while answer.exit_code is None:
        data = await shell.read()
        if not data:
            raise ShellLost("the connection was lost")
        answer.feed(data)
        progressed(len(data))
    return answer.text, answer.exit_code


def _script(line: str, mark: str) -> bytes:
    """Return the input of an open shell that runs a line in a child shell; its syntax errors, `exit` and `cd` stay there."""
    if is_long(line):
        head, _, document = here_document("", line, mark).partition("\n")
        run = f"{head} 2>&1"
    else:
        run, document = f"sh -c {shlex.quote(line)} 2>&1 < /dev/null", ""
    return f"echo {mark} begin $$; {run}; echo {mark} $?\n{document}".encode(errors="surrogateescape")


class _Answer:
    """Output of a shell, taken apart: what a line prints lies between the marks before and after it.

    Attributes:
        shell: process id of the shell, once it has begun with the line; 0 before.
        exit_code: of the line, once it has ended.
        text: output of the line, once it has ended.
    """

    def __init__(self) -> None:
        self.mark = f"medweave-{secrets.token_hex(8)}"
        self._begin = re.compile(rb"%s begin (\d+)\n" % self.mark.encode())
        self._end = re.compile(rb"%s (\d+)\n" % self.mark.encode())
        self._seen, self._looked, self._begins_at = bytearray(), 0, 0
        self.shell = 0
        self.exit_code: int | None = None
        self.text = ""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._seen += data
        if not self.shell and (begin := self._begin.search(self._seen)):
            self.shell, self._begins_at = int(begin[1]), begin.end()
        if end := self._end.search(self._seen, self._looked):
            self.exit_code = int(end[1])
            self.text = self._seen[self._begins_at : end.start()].decode(errors="replace").strip()
        self._looked = max(0, len(self._seen) - _MARK_BYTES)
