"""A few open shells at a site: a login costs a tenth of a second or, at sites with many modules, some seconds.

StreamFlow's connectors have one shell, in which a command that hangs blocks all others, and repeat a command when its shell breaks.
Here several shells work in parallel, and a command is never sent twice. Does not import streamflow.
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
PROBE_S = 150  # four times within the deadline without progress
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
    """The site opens no further shell now; it may do so later."""


class OpenShell(Protocol):
    """A POSIX shell that reads commands from its input."""

    @property
    def usable(self) -> bool:
        """Return False once the shell is known to have ended."""

    async def write(self, data: bytes) -> None:
        """Send bytes to its input."""

    async def read(self) -> bytes:
        """Return the next bytes of its output; none at its end."""

    async def close(self) -> None:
        """End the shell, if it has not ended."""


class Shells:
    """Up to `SHELLS` shells, opened when they are needed.

    Args:
        open_shell: raises `TooManyShells` if the site opens no further one.
        where: the site, for messages.
    """

    def __init__(self, open_shell: Callable[[], Awaitable[OpenShell]], where: str) -> None:
        self._open, self._where = open_shell, where
        self._free: list[OpenShell] = []
        self._most, self._num_open = SHELLS, 0
        self._changed = asyncio.Condition()

    async def execute(self, line: str, timeout_s: float | None, silence_s: float | None = None) -> tuple[str, int]:
        """Run a line once. Return its output with errors, and the exit code.

        Args:
            timeout_s: longest time, s; None for no limit while it makes progress.
            silence_s: longest time without progress, s; None for the default.

        Raises:
            ShellLost: it is unknown whether the line ran to its end.
            TimeoutError: the line did not end in time; its shell is closed.
            NoProgress: the line made no progress; its shell is closed.
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
        """Count processor time of a long command as progress; a site where it cannot be measured counts as progress too."""
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
            except Exception:  # the deadline of the command continues
                continue
            finally:
                await shell.close()
            if code != 0 or text != counters:
                deadline.progressed()
            counters = text

    async def keep_at_most(self, number: int) -> None:
        """Limit the number of shells from now on; free ones beyond it are closed."""
        self._most = number
        while self._free and self._num_open > self._most:
            await self._discard(self._free.pop())

    async def close(self) -> None:
        """Close all free shells."""
        while self._free:
            await self._discard(self._free.pop())

    @contextlib.asynccontextmanager
    async def _shell(self) -> AsyncIterator[OpenShell]:
        shell = await self._take()
        try:
            yield shell
        except BaseException:  # its next output would be read as another command's
            await self._discard(shell)
            raise
        if self._num_open > self._most:
            await self._discard(shell)
        else:
            self._free.append(shell)
            await self._notify()

    async def _take(self) -> OpenShell:
        """Return a free or new shell; wait for one if the limit is reached."""
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
        """Return a new shell; None if the site opens no further one now."""
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
    """Parser of a shell's output: the output of a line is between the marks before and after it.

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
