"""Peers of direct copies on this machine: the agent's program without ssh, and a proxy between two of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.engine.data import manager
from medweave_connectors.transfer import failures
from medweave_connectors.transfer.capabilities import Endpoint

# A python3 that is a script of some version manager takes half a second to begin.
PATH = f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"


class Program:
    """A process with pipes, as a connector opens one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @property
    def usable(self) -> bool:
        return self.process.returncode is None

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def read(self) -> bytes:
        assert self.process.stdout is not None
        return await self.process.stdout.read(65536)

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class LocalEnd:
    """A peer on this machine.

    Attributes:
        programs: the started processes, in order.
    """

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.programs: list[Program] = []
        self._environment = os.environ | {"PATH": PATH} | (environment or {})
        self.end = Endpoint(name, ["127.0.0.1"], "127.0.0.1", self._open)

    async def _open(self, words: Sequence[str]) -> Program:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, env=self._environment, start_new_session=True
        )
        self.programs.append(Program(process))
        return self.programs[-1]


def pass_all(data: bytes) -> bytes | None:
    return data


@contextlib.contextmanager
def between(port: int, change: Callable[[bytes], bytes | None]) -> Iterator[int]:
    """Yield the port of a proxy for `port` that changes the data sent to it. It cuts the connection if `change` returns None."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket, by: Callable[[bytes], bytes | None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                changed = by(data)
                if changed is None:
                    break
                target.sendall(changed)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for ends in ((client, server, change), (server, client, pass_all)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


class Recorded:
    """A replacement for a run's record. No run folder has its name, so no store is used."""

    run_id = "a-run"

    def __init__(self) -> None:
        self.transfers: list[dict[str, Any]] = []
        self.progress: list[dict[str, Any]] = []
        self.notices: list[str] = []

    def transfer_ended(self, **facts: Any) -> None:
        self.transfers.append(facts)

    def transfer_progress(self, **facts: Any) -> None:
        self.progress.append(facts)

    def deployment_notice(self, _deployment: str, text: str) -> None:
        self.notices.append(text)


def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Replace the record of the current run in data managers. Return the replacement."""
    record = Recorded()
    for module in (manager, failures):
        monkeypatch.setattr(module, "current", lambda: record)
    return record
