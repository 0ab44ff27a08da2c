"""An ssh server for tests: real ssh, commands run by this machine's `sh`, connections that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh

from medweave_connectors.sites.ssh.login import COMMAND


class _Server(asyncssh.SSHServer):
    def __init__(self, connections: set[Any]) -> None:
        self._connections = connections

    def connection_made(self, connection: Any) -> None:
        self._connections.add(connection)

    def begin_auth(self, username: str) -> bool:
        return True


class SSHServer:
    """A server in its own thread.

    Attributes:
        port: on 127.0.0.1.
        key, known_hosts: files for a client that is let in.
        commands: scripts that were run, and commands of clients that send none, in order.
        environment: what commands find, over this process's own.
    """

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.key, self.known_hosts = folder / "id_ed25519", folder / "known_hosts"
        self.commands: list[str] = []
        self._folder, self.environment = folder, dict(environment or {})
        self._connections: set[Any] = set()
        self._children: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        if self._loop.is_closed():  # a test has ended it
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    def cut(self) -> None:
        """Drop all connections, as a network failure does; running programs continue."""
        done = threading.Event()

        def drop() -> None:
            while self._connections:
                self._connections.pop().abort()
            done.set()

        self._loop.call_soon_threadsafe(drop)
        assert done.wait(10)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._listener.close()
        for connection in self._connections:
            connection.abort()
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0.02))  # transports close in the next rounds
        self._loop.close()

    async def _listen(self) -> None:
        host_key, key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        key.write_private_key(str(self.key))
        self.key.chmod(0o600)
        authorized = self._folder / "authorized_keys"
        key.write_public_key(str(authorized))
        self._listener = await asyncssh.create_server(
            lambda: _Server(self._connections),
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=str(authorized),
            process_factory=self._run,
            encoding=None,
        )
        self.port = self._listener.get_port()
        public = host_key.export_public_key().decode().strip()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {public}\n[localhost]:{self.port} {public}\n")

    async def _run(self, process: Any) -> None:
        if process.command != COMMAND:
            self.commands.append(process.command)
        child = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            process.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | self.environment,
            start_new_session=True,
        )
        self._children.add(child)
        heard = self.commands.append if process.command == COMMAND else _nothing
        into = asyncio.create_task(_pump_in(process.stdin, child.stdin, heard))
        out = [_pump_out(child.stdout, process.stdout), _pump_out(child.stderr, process.stderr)]
        await asyncio.gather(*out)
        code = await child.wait()
        self._children.discard(child)
        into.cancel()
        with contextlib.suppress(OSError, asyncssh.Error):  # the client may have gone
            if code < 0:
                process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                process.exit(code)


def _nothing(_script: str) -> None:
    """Ignore the input of a command that reads no script."""


async def _pump_in(source: Any, target: Any, heard: Callable[[str], None]) -> None:
    begin: bytes | None = b""  # of the input: the line that starts a shell, and the one with its script
    with contextlib.suppress(Exception):  # either side may have gone
        while data := await source.read(65536):
            if begin is not None and (begin + data).count(b"\n") >= 2:
                script = (begin + data).split(b"\n")[1].decode(errors="replace")
                heard(script.replace("\\n", "\n").replace("\\\\", "\\"))
                begin = None
            elif begin is not None:
                begin += data
            target.write(data)
            await target.drain()
    with contextlib.suppress(Exception):
        target.close()


async def _pump_out(source: Any, target: Any) -> None:
    with contextlib.suppress(Exception):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()


@contextlib.contextmanager
def ssh_server(folder: Path, environment: dict[str, str] | None = None) -> Iterator[SSHServer]:
    """Yield a server that runs while the context does."""
    server = SSHServer(folder, environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()
