"""The connection to one machine and its sessions: shells for short commands, and sessions for jobs and transfers.

A server limits the sessions of one connection (MaxSessions of sshd, often 10, sometimes 2). The limit is learned when it refuses
one; then fewer are used, and the others wait. Does not import streamflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import asyncssh

from medweave_connectors.host.shells import SHELLS, Shells, TooManyShells
from medweave_connectors.sites.ssh.connect import Dropped, Target, connect
from medweave_connectors.sites.ssh.control_master import MasterConnection
from medweave_connectors.sites.ssh.login import COMMAND, READ_BYTES, StartedSession, start
from medweave_core.errors import UsageError

FEWEST_SESSIONS = 2  # one shell, and one job or copy
PAUSES_S = (0.3, 0.6, 1.2, 2.4)
CLOSING_S = 3.0  # a server may count a session so long after it was closed
WAIT_S = 1.0
CLOSE_S = 2.0


class SessionRefused(Exception):
    """The server opens no further session over this connection; the argument is its message."""


class NotReached(Exception):
    """The machine was not reached, or opened no session; a retry may help."""


class SessionSlots:
    """Semaphore whose number of slots may change."""

    def __init__(self, number: int) -> None:
        self._number, self._taken = number, 0
        self._changed = asyncio.Condition()

    async def enter(self) -> None:
        """Wait for a slot."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._taken < self._number)
            self._taken += 1

    async def leave(self) -> None:
        """Release the slot."""
        async with self._changed:
            self._taken -= 1
            self._changed.notify_all()  # the first waiter may have been cancelled

    async def resize(self, number: int) -> None:
        """Change the number of slots; slots in use beyond it are released later."""
        async with self._changed:
            self._number = number
            self._changed.notify_all()


class Sessions:
    """The connection, opened when it is needed and again after a loss.

    Args:
        most: sessions at the same time, four of them for shells.
        notify: called with a text for the user when the server allows fewer.

    Attributes:
        target: the machine.
        allowed: sessions that the server opens over one connection; None while it has refused none.
        noise: what the last login printed before its shell answered.
    """

    def __init__(self, target: Target, *, most: int, notify: Callable[[str], None]) -> None:
        self.target, self._notify = target, notify
        self._connection: Any = None
        self._connecting = asyncio.Lock()
        self._most = most
        self._num_open = self._num_opening = 0
        self._closed_at = -CLOSING_S
        self._others = SessionSlots(most - SHELLS)
        self.shells = Shells(self._open_shell, target.node)
        self.allowed: int | None = None
        self.noise = ""

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[StartedSession]:
        """Open a session whose shell waits for a script, with streams of bytes; it is closed at the end.

        Raises:
            UsageError: a setting is wrong, or the server allows too few sessions.
            NotReached: the machine was not reached.
        """
        started = None
        while started is None:
            await self._others.enter()
            try:
                started = await self._opened()
            finally:
                if started is None:
                    await self._others.leave()
            if started is None:  # fewer are allowed now: it waits for its turn again
                await asyncio.sleep(WAIT_S)
        try:
            yield started
        finally:
            await self._close(started.process)
            await self._others.leave()

    async def program(self, script: str) -> SessionShell:
        """Return a session with a running script that reads its input, until it is closed; raises as `session`."""
        session = self.session()
        started = await session.__aenter__()
        started.run(script)
        return SessionShell(started.process, partial(session.__aexit__, None, None, None))

    async def fill(self) -> int:
        """Open as many sessions as a run may use at the same time, and close them. Return how many the server opened.

        Raises:
            UsageError: a setting is wrong, or the server opens too few.
            NotReached: see there.
        """
        missing = self._most - self._num_open
        started = await asyncio.gather(*(self._open(()) for _ in range(missing)), return_exceptions=True)
        number = self._num_open
        for result in started:
            if isinstance(result, StartedSession):
                await self._close(result.process)
        for result in started:
            if isinstance(result, SessionRefused) and number < FEWEST_SESSIONS:
                raise self._too_few(str(result), number)
            if isinstance(result, BaseException) and not isinstance(result, SessionRefused):
                raise result
        return number

    async def close(self) -> None:
        """Close the shells and the connection; sessions that the server still has are ignored."""
        await self.shells.close()
        if self._connection is not None:
            self._connection.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._connection.wait_closed(), CLOSE_S)
            self._connection = None

    async def _open_shell(self) -> SessionShell:
        if (started := await self._opened()) is None:
            raise TooManyShells
        started.run("exec sh")
        return SessionShell(started.process, partial(self._close, started.process))

    async def _opened(self) -> StartedSession | None:
        """Return a session; None if the server opens no further one while others are open."""
        try:
            started = await self._open()
        except SessionRefused as refused:
            await self._learn(str(refused))
            return None
        self.noise = started.noise
        return started

    async def _open(self, pauses_s: Sequence[float] | None = None) -> StartedSession:
        for pause_s in (*(PAUSES_S if pauses_s is None else pauses_s), None):
            connection = None
            try:
                connection = await self._connected()
                return await self._counted(connection)
            except (asyncssh.Error, OSError) as error:
                if isinstance(connection, MasterConnection):
                    connection.lost()
                if word := _refusal(connection, error):
                    is_changing = self._num_opening or time.monotonic() - self._closed_at < CLOSING_S
                    if pause_s is None or (self._num_open and not is_changing):
                        raise SessionRefused(word) from error
                elif pause_s is None or (connection is None and not _may_help(error, pause_s)):
                    text = str(error) or type(error).__name__
                    raise NotReached(f"{self.target.node} cannot be reached by ssh: {text}") from error
            await asyncio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    async def _counted(self, connection: Any) -> StartedSession:
        self._num_opening += 1
        try:
            started = await _start(connection)
            self._num_open += 1
            return started
        finally:
            self._num_opening -= 1

    async def _learn(self, word: str) -> None:
        """Limit the sessions to those that are open now.

        Raises:
            UsageError: these are too few.
        """
        if self._num_opening or (self.allowed is not None and self._num_open >= self.allowed):
            return  # not known yet, or a shell that will be closed is still busy
        if self._num_open < FEWEST_SESSIONS:
            raise self._too_few(word, self._num_open)
        self.allowed = self._num_open
        num_shells = shells_of(self.allowed)
        self._notify(
            f"{self.target.node} opens {self.allowed} sessions over one connection (MaxSessions of its sshd): "
            f"{num_shells} of them for short commands, {self.allowed - num_shells} for jobs and copies; others wait"
        )
        await self._others.resize(self.allowed - num_shells)
        await self.shells.keep_at_most(num_shells)

    def _too_few(self, word: str, number: int) -> UsageError:
        return UsageError(
            f"{self.target.where}.nodes: {self.target.node} opens too few sessions over one connection.",
            seen=f"{word}, with {number} open",
            expected=f"at least {FEWEST_SESSIONS} sessions: MaxSessions of the server's sshd_config (10 if not set)",
            do="ask the operators to raise MaxSessions; close sessions of your own that share the connection",
        )

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self.target)
            return self._connection

    async def _close(self, process: Any) -> None:
        process.close()  # not awaited: servers confirm when the command has ended
        self._num_open -= 1
        self._closed_at = time.monotonic()


def shells_of(allowed: int) -> int:
    """Return how many of the allowed sessions are for short commands."""
    return max(1, min(SHELLS, allowed // 2))


async def _start(connection: Any) -> StartedSession:
    """Open a session; sshd starts a process group for each one."""
    if isinstance(connection, MasterConnection):
        return await start(await connection.create_process(COMMAND))
    return await start(await connection.create_process(COMMAND, encoding=None))


def _refusal(connection: Any, error: Exception) -> str:
    """Return the server's message if it refuses a session over an open connection; empty for any other error."""
    if isinstance(error, asyncssh.ChannelOpenError) and not connection.is_closed():
        return f"a session was refused: {error.reason}"
    if isinstance(connection, MasterConnection) and "refused" in str(error):
        return f"the open ControlMaster gave no session: {error}"
    return ""


def _may_help(error: Exception, pause_s: float) -> bool:
    """Return True to connect again: once after any error, and longer if the server has too many logins at the moment."""
    return pause_s == PAUSES_S[0] or isinstance(error, Dropped)


class SessionShell:
    """A session whose process is a POSIX shell that reads from its input.

    Args:
        close: closes the session.
    """

    def __init__(self, process: Any, close: Callable[[], Awaitable[Any]]) -> None:
        self._process, self._close = process, close
        self._is_closed = False

    @property
    def usable(self) -> bool:
        """Return False once the shell is known to have ended."""
        return not (self._process.is_closing() or self._process.stdout.at_eof())

    async def write(self, data: bytes) -> None:
        """Send bytes to its input."""
        self._process.stdin.write(data)

    async def read(self) -> bytes:
        """Return the next bytes of its output; none at its end."""
        return bytes(await self._process.stdout.read(READ_BYTES))

    async def close(self) -> None:
        """End the shell, if it has not ended."""
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(Exception):
                self._process.stdin.write_eof()
            await self._close()
