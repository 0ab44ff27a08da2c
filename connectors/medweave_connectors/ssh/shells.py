"""A few open shells at a machine: a login costs a tenth of a second or, at sites with many modules, some seconds.

The stock connector has one shell, in which a command that hangs blocks all others, and runs a command again when its shell
breaks. Here several wait side by side, and what was sent is never sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

SHELLS = 4
READ_BYTES = 2**16


class ShellLost(Exception):
    """The shell ended before the command's end was known."""


class _Shell:
    def __init__(self, session: AbstractAsyncContextManager[Any]) -> None:
        self._session = session
        self._process: Any = None

    async def open(self) -> None:
        self._process = await self._session.__aenter__()

    @property
    def usable(self) -> bool:
        return not (self._process.is_closing() or self._process.stdout.at_eof())

    async def execute(self, line: str) -> tuple[str, int]:
        mark = f"medweave-{secrets.token_hex(8)}"
        # A shell of the line's own: its syntax errors, `exit` and `cd` stay there.
        self._process.stdin.write(f"sh -c {shlex.quote(line)} 2>&1 < /dev/null; echo {mark} $?\n".encode())
        seen, sign = bytearray(), f"{mark} ".encode()
        while (place := seen.rfind(sign)) < 0 or not seen.endswith(b"\n"):
            data = await self._process.stdout.read(READ_BYTES)
            if not data:
                raise ShellLost("the connection was lost")
            seen += data
        return seen[:place].decode(errors="replace").strip(), int(seen[place + len(sign) :])

    async def close(self) -> None:
        with contextlib.suppress(Exception):  # it may be gone
            self._process.stdin.write_eof()
            self._process.close()
            await self._session.__aexit__(None, None, None)


class Shells:
    """Up to `SHELLS` shells, opened when they are needed."""

    def __init__(self, session: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        """`session` makes a session whose process is a POSIX shell that reads from its input, as bytes."""
        self._session = session
        self._free: list[_Shell] = []
        self._places = asyncio.Semaphore(SHELLS)

    async def execute(self, line: str, timeout_s: float | None) -> tuple[str, int]:
        """Runs a line once: (output and errors, exit code).

        Raises:
            ShellLost: it is not known whether the line ran to its end.
            TimeoutError: it did not end in time; its shell is closed.
        """
        async with self._shell() as shell:
            return await asyncio.wait_for(shell.execute(line), timeout_s)

    async def close(self) -> None:
        """Closes all that are free."""
        while self._free:
            await self._free.pop().close()

    @contextlib.asynccontextmanager
    async def _shell(self) -> AsyncIterator[_Shell]:
        async with self._places:
            while self._free and not self._free[-1].usable:
                await self._free.pop().close()
            if self._free:
                shell = self._free.pop()
            else:
                shell = _Shell(self._session())
                await shell.open()
            try:
                yield shell
            except BaseException:  # its next words would be read as another command's
                await shell.close()
                raise
            self._free.append(shell)
