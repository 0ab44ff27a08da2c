"""A program in a pod with its input and output, by the official client over a websocket."""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import ssl
import threading
import time
from collections.abc import Sequence

from kubernetes import client
from kubernetes.stream import stream
from websocket import ABNF, WebSocketException  # comes with kubernetes

from medweave_connectors.sites.pods.api.channels import STATUS, STDIN, STDOUT

_PAUSE_S = 0.002
_KEEP_STDERR = ("sh", "-c", '"$@"; exit $?', "sh")


class PodProgram:
    """A program in a pod. A lock serializes reading and writing, since the connection is not thread-safe."""

    def __init__(self, api: client.ApiClient, pod: str, namespace: str, words: Sequence[str], limit_s: float) -> None:
        connect = client.CoreV1Api(api).connect_get_namespaced_pod_exec
        # Under a shell that keeps the error stream open: containerd closes a program's input together with that stream.
        options = {
            "stdin": True,
            "stdout": True,
            "stderr": True,
            "tty": False,
            "_preload_content": False,
            "binary": True,
        }
        self._stream = stream(connect, pod, namespace, command=[*_KEEP_STDERR, *words], **options)
        self._socket, self._turn, self.usable = self._stream.sock, threading.Lock(), True
        self._socket.settimeout(limit_s)

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self.send, data)

    async def read(self) -> bytes:
        return await asyncio.to_thread(self.next)

    async def close(self) -> None:
        self.usable = False
        with contextlib.suppress(OSError, WebSocketException):
            await asyncio.to_thread(self._stream.close)

    def printed(self, limit_s: float = math.inf) -> str:
        """Return its output until its end or the time limit."""
        until_s = time.monotonic() + limit_s
        return b"".join(iter(lambda: self.next(until_s), b"")).decode(errors="replace")

    def next(self, until_s: float = math.inf) -> bytes:
        """Return the next bytes of its output; none at its end, or after `until_s` of the monotonic clock."""
        while self.usable and time.monotonic() < until_s:
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
        """Return received bytes, None for none yet, empty bytes at the end. The client's `update` misses bytes buffered by TLS."""
        raw = self._socket.sock
        if raw is None:
            return b""
        is_buffered = isinstance(raw, ssl.SSLSocket) and raw.pending()
        if not is_buffered and not select.select([raw], [], [], 0)[0]:
            return None
        try:
            kind, frame = self._socket.recv_data_frame(True)
        except (OSError, WebSocketException):
            return b""
        if kind == ABNF.OPCODE_CLOSE:
            return b""
        return frame.data or None if kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) else None

    def send(self, data: bytes) -> None:
        """Write to its input."""
        with self._turn:
            self._socket.send_binary(bytes((STDIN,)) + data)
