"""A few open shells at a place: a login costs a tenth of a second or, at sites with many modules, some seconds.

The stock connectors have one shell, in which a command that hangs blocks all others, and run a command again when its shell
breaks. Here several wait side by side, and what was sent is never sent again. No streamflow in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

SHELLS = 4


class ShellLost(Exception):
    """The shell ended before the command's end was known."""


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
    """Up to `SHELLS` shells, opened when they are needed."""

    def __init__(self, open_shell: Callable[[], Awaitable[OpenShell]]) -> None:
        self._open = open_shell
        self._free: list[OpenShell] = []
        self._places = asyncio.Semaphore(SHELLS)

    async def execute(self, line: str, timeout_s: float | None) -> tuple[str, int]:
        """Runs a line once: (output and errors, exit code).

        Raises:
            ShellLost: it is not known whether the line ran to its end.
            TimeoutError: it did not end in time; its shell is closed.
        """
        async with self._shell() as shell:
            return await asyncio.wait_for(_execute(shell, line), timeout_s)

    async def close(self) -> None:
        """Closes all that are free."""
        while self._free:
            await self._free.pop().close()

    @contextlib.asynccontextmanager
    async def _shell(self) -> AsyncIterator[OpenShell]:
        async with self._places:
            while self._free and not self._free[-1].usable:
                await self._free.pop().close()
            shell = self._free.pop() if self._free else await self._open()
            try:
                yield shell
            except BaseException:  # its next words would be read as another command's
                await shell.close()
                raise
            self._free.append(shell)


async def _execute(shell: OpenShell, line: str) -> tuple[str, int]:
    mark = f"medweave-{secrets.token_hex(8)}"
    # A shell of the line's own: its syntax errors, `exit` and `cd` stay there.
    await shell.write(f"sh -c {shlex.quote(line)} 2>&1 < /dev/null; echo {mark} $?\n".encode())
    seen, sign = bytearray(), f"{mark} ".encode()
    while (place := seen.rfind(sign)) < 0 or not seen.endswith(b"\n"):
        data = await shell.read()
        if not data:
            raise ShellLost("the connection was lost")
        seen += data
    return seen[:place].decode(errors="replace").strip(), int(seen[place + len(sign) :])
