"""Where a program of a copy is started for a trial: a machine that is reached by ssh, or a pod of a trial."""

from __future__ import annotations

import asyncio
import contextlib
import select
import shlex
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import paramiko
from kubernetes import client
from kubernetes.stream import stream
from websocket import ABNF, WebSocketException  # comes with kubernetes

from medweave.doctor.cluster import Cluster
from medweave.doctor.way import Closed, Login, connected, settings_of
from medweave_connectors.pods.channels import STATUS, STDIN, STDOUT
from medweave_connectors.remote import stream_line
from medweave_connectors.transfer.direct.ends import End

_PAUSE_S = 0.002
_KEEPING = ("sh", "-c", '"$@"; exit $?', "sh")


@dataclass(frozen=True, slots=True)
class Opened:
    """A place that is reached.

    Attributes:
        end: as a copy has it.
        ask: what a line of shell prints there; nothing where it fails.
    """

    end: End
    ask: Callable[[str], str]


class Ground(Protocol):
    """A place, opened when it is needed."""

    @property
    def name(self) -> str:
        """Of the deployment, with the node where it has several."""

    @property
    def workdir(self) -> str | None:
        """Of the deployment; None where it says none."""

    @property
    def limit_s(self) -> float:
        """For one answer."""

    def opened(self) -> contextlib.AbstractContextManager[Opened]:
        """The place, for a block.

        Raises:
            Closed: nobody can go there.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A machine.

    Attributes:
        name: the deployment's, with the node where it has several.
        workdir: of the deployment; None where it says none.
    """

    name: str
    login: Login
    workdir: str | None

    @property
    def limit_s(self) -> float:
        """For one answer."""
        return self.login.limit_s

    @contextlib.contextmanager
    def opened(self) -> Iterator[Opened]:
        """Connects.

        Raises:
            Closed: see there.
        """
        host = settings_of(self.login).hostname
        with connected(self.login) as there:

            async def begin(words: Sequence[str]) -> _Channel:
                return await asyncio.to_thread(_Channel, there, stream_line(words), self.limit_s)

            def ask(line: str) -> str:
                _, out, _ = there.exec_command(f"sh -c {shlex.quote(line)} 2>/dev/null", timeout=self.limit_s)
                return out.read().decode(errors="replace")

            yield Opened(End(self.name, [host], "", begin), ask)


class Pods:
    """The pods of a deployment: one of a trial stands for them, from its first use to the end of `held`.

    Args:
        name: the deployment's.
        cluster: not opened yet.
    """

    def __init__(
        self, name: str, workdir: str | None, limit_s: float, cluster: Cluster, held: contextlib.ExitStack
    ) -> None:
        self.name, self.workdir, self.limit_s = name, workdir, limit_s
        self._cluster, self._held = cluster, held
        self._pod: tuple[client.ApiClient, Any] | None = None
        self._closed: Closed | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Opened]:
        """Starts the pod, the first time.

        Raises:
            Closed: it does not start.
        """
        if self._closed is not None:
            raise self._closed
        if self._pod is None:
            try:
                self._pod = self._held.enter_context(self._cluster.standing(self.workdir))
            except Closed as error:
                self._closed = error
                raise
        api, pod = self._pod
        where = pod.metadata.name, pod.metadata.namespace

        async def begin(words: Sequence[str]) -> _Exec:
            return await asyncio.to_thread(_Exec, api, *where, words, self.limit_s)

        def ask(line: str) -> str:
            return _told(_Exec(api, *where, ["sh", "-c", f"{{ {line}; }} 2>/dev/null"], self.limit_s))

        address = pod.status.pod_ip
        yield Opened(End(self.name, [address], address, begin), ask)


class _Channel:
    """A program at a machine, with its input and output."""

    def __init__(self, there: paramiko.SSHClient, line: str, limit_s: float) -> None:
        transport = there.get_transport()
        assert transport is not None  # it is connected
        self._channel = transport.open_session(timeout=limit_s)
        self._channel.exec_command(line)

    @property
    def usable(self) -> bool:
        return not self._channel.closed

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self._channel.sendall, data)

    async def read(self) -> bytes:
        read: Callable[[int], bytes] = self._channel.recv
        return await asyncio.to_thread(read, 2**16)

    async def close(self) -> None:
        with contextlib.suppress(OSError, paramiko.SSHException):
            self._channel.close()


class _Exec:
    """A program in a pod. Reading and writing take turns at the connection, which knows one user at a time."""

    def __init__(self, api: client.ApiClient, pod: str, namespace: str, words: Sequence[str], limit_s: float) -> None:
        ask = client.CoreV1Api(api).connect_get_namespaced_pod_exec
        # Under a shell that keeps the error stream: containerd ends a program's input when that is closed.
        ways = {"stdin": True, "stdout": True, "stderr": True, "tty": False, "_preload_content": False, "binary": True}
        self._way = stream(ask, pod, namespace, command=[*_KEEPING, *words], **ways)
        self._socket, self._turn, self.usable = self._way.sock, threading.Lock(), True
        self._socket.settimeout(limit_s)

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self._write, data)

    async def read(self) -> bytes:
        return await asyncio.to_thread(self.next)

    async def close(self) -> None:
        self.usable = False
        with contextlib.suppress(OSError, WebSocketException):
            await asyncio.to_thread(self._way.close)

    def next(self) -> bytes:
        """The next bytes of its output; none at its end."""
        while self.usable:
            with self._turn:
                frame = self._frame()
            if frame is None:
                time.sleep(_PAUSE_S)
            elif frame[:1] == bytes((STDOUT,)) and frame[1:]:
                return frame[1:]
            elif not frame or frame[0] == STATUS:
                self.usable = False
        return b""

    def _frame(self) -> bytes | None:
        """What has come; None for nothing yet, and no bytes for the end. The client's `update` overlooks what TLS holds back."""
        raw = self._socket.sock
        if raw is None:
            return b""
        is_held = isinstance(raw, ssl.SSLSocket) and raw.pending()
        if not is_held and not select.select([raw], [], [], 0)[0]:
            return None
        try:
            kind, frame = self._socket.recv_data_frame(True)
        except (OSError, WebSocketException):
            return b""
        if kind == ABNF.OPCODE_CLOSE:
            return b""
        return frame.data or None if kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) else None

    def _write(self, data: bytes) -> None:
        with self._turn:
            self._socket.send_binary(bytes((STDIN,)) + data)


def _told(program: _Exec) -> str:
    return b"".join(iter(program.next, b"")).decode(errors="replace")
