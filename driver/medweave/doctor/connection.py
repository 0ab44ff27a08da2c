"""Connections to a machine by the connectors' ssh client and sessions (asyncssh, or an open ControlMaster), usable from threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import shlex
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from medweave_connectors.host.deadlines import NoProgress
from medweave_connectors.host.shells import ShellLost
from medweave_connectors.jobs.remote_environment import stream_line
from medweave_connectors.sites.ssh.connect import Target
from medweave_connectors.sites.ssh.openssh_config import look_up
from medweave_connectors.sites.ssh.sessions import NotReached, Sessions, SessionShell
from medweave_connectors.sites.ssh.settings import is_node, split_jump
from medweave_core.errors import UsageError

CLOSE_S = 10.0
MOST_SESSIONS = 10
Value = TypeVar("Value")


class Unreachable(Exception):
    """A machine or cluster cannot be reached; `do` says what to change."""

    def __init__(self, seen: str, do: str) -> None:
        super().__init__(seen)
        self.do = do


@dataclass(frozen=True, slots=True, kw_only=True)
class SshLogin:
    """The login to a machine of a site file.

    Attributes:
        most_sessions: largest number of sessions that a run opens at the same time.
        limit_s: time limit of one answer.
    """

    target: Target
    most_sessions: int = MOST_SESSIONS
    limit_s: float = 10.0

    @property
    def where(self) -> str:
        """Return the path of the deployment's `config` in the site file."""
        return self.target.where

    @property
    def host(self) -> str:
        """Return the name of the machine in the site file."""
        return self.target.host


def login_of(where: str, node: str, config: dict[str, Any], limit_s: float) -> SshLogin:
    """Return the login to one of a deployment's nodes.

    Args:
        where: the deployment's `config` in the site file.
        config: with absolute paths and without variables.

    Raises:
        Unreachable: the port of the node is invalid.
    """
    if not is_node(node):
        raise Unreachable(f"{node}: the port is not between 1 and 65535", f"{where}.nodes: correct the port")
    _, host, port = split_jump(node)
    target = Target(
        where=where,
        host=host,
        port=port,
        user=config.get("username", ""),
        key=config.get("sshKey", ""),
        passphrase_file=config.get("sshKeyPassphraseFile", ""),
        known_hosts=config.get("knownHosts", ""),
        connect_timeout_s=min(limit_s, config.get("connectTimeout", limit_s)),
    )
    return SshLogin(target=target, most_sessions=config.get("maxConcurrentSessions", MOST_SESSIONS), limit_s=limit_s)


class SshConnection:
    """An open connection to a machine.

    Attributes:
        sessions: sessions as of a run.
    """

    def __init__(self, login: SshLogin, sessions: Sessions, loop: asyncio.AbstractEventLoop) -> None:
        self.sessions = sessions
        self._login, self._loop = login, loop

    def ask(self, line: str) -> tuple[str, int]:
        """Return what a line of shell printed to standard output on the machine, and its exit status.

        Raises:
            Unreachable: the machine refuses a session, or the connection is lost.
            TimeoutError: the line has not ended in time.
        """
        return self.wait(self.sessions.shells.execute(f"{{ {line}\n}} 2> /dev/null", self._login.limit_s))

    def num_sessions(self) -> int:
        """Return how many of a run's sessions the server opens at the same time; raises as `ask`."""
        return self.wait(self.sessions.fill())

    def wait(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine on the connection's event loop and return its result; raises as `ask`."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        with _as_unreachable(self._login):
            return future.result()

    async def program(self, words: Sequence[str]) -> SshProgram:
        """Start a program whose input and output can be used from another event loop; raises as `ask`."""
        shell = await asyncio.to_thread(self.wait, self.sessions.program(stream_line(words)))
        return SshProgram(shell, self._loop)


class SshProgram:
    """A program on a machine, used from another event loop than that of its connection."""

    def __init__(self, shell: SessionShell, loop: asyncio.AbstractEventLoop) -> None:
        self._shell, self._loop = shell, loop

    @property
    def usable(self) -> bool:
        return self._shell.usable

    async def write(self, data: bytes) -> None:
        await self._on_its_loop(self._shell.write(data))

    async def read(self) -> bytes:
        return await self._on_its_loop(self._shell.read())

    async def close(self) -> None:
        await self._on_its_loop(self._shell.close())

    async def _on_its_loop(self, work: Coroutine[Any, Any, Value]) -> Value:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


@contextlib.contextmanager
def connected(login: SshLogin) -> Iterator[SshConnection]:
    """Yield a connection to a machine on which a first command has succeeded.

    Raises:
        Unreachable: the connection or the command failed.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    sessions = Sessions(login.target, most=login.most_sessions, notify=lambda _: None)
    reached = SshConnection(login, sessions, loop)
    try:
        with _as_unreachable(login, includes_timeout=True):
            reached.ask("true")
        yield reached
    finally:
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(sessions.close(), loop).result(CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_S)
        if not thread.is_alive():
            loop.close()


def address_of(login: SshLogin) -> str:
    """Return the name or address that ssh's configuration has for the machine.

    Raises:
        Unreachable: the configuration cannot be read.
    """
    target = login.target
    with _as_unreachable(login):
        settings = asyncio.run(look_up(target.host, target.user, target.port, where=f"{target.where}.nodes"))
    return settings.hostname


@contextlib.contextmanager
def _as_unreachable(login: SshLogin, *, includes_timeout: bool = False) -> Iterator[None]:
    """Raise the errors of a connection as `Unreachable`.

    Args:
        includes_timeout: whether a timeout is such an error, too.
    """
    by_hand = f"{login.where}.nodes: correct host and port; `ssh -v {shlex.quote(login.host)}` shows details"
    try:
        yield
    except UsageError as error:
        setting = error.what.partition(": ")[0] if error.what.startswith(f"{login.where}.") else login.where
        raise Unreachable(error.seen or error.what, f"{setting}: {error.do or 'correct it'}") from error
    except (NotReached, ShellLost, NoProgress) as error:
        raise Unreachable(str(error), by_hand) from error
    except (TimeoutError, concurrent.futures.CancelledError) as error:
        if not includes_timeout:
            raise
        seen = f"{login.target.node} does not answer within {login.limit_s:.0f} s"
        raise Unreachable(
            seen, "check the network, the VPN and the port; for a slow login, use a longer --timeout"
        ) from error
