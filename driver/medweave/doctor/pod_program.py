"""A program in a pod by the official client, with its input and output: over a websocket."""

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
_KEEPING = ("sh", "-c", '"$@"; exit $?', "sh")


class Program:
    """A program in a pod. Reading and writing take turns at the connection, which knows one user at a time."""

    def __init__(self, api: client.ApiClient, pod: str, namespace: str, words: Sequence[str], limit_s: float) -> None:
        ask = client.CoreV1Api(api).connect_get_namespaced_pod_exec
        # Under a shell that keeps the error stream: containerd ends a program's input when that is closed.
        ways = {"stdin": True, "stdout": True, "stderr": True, "tty": False, "_preload_content": False, "binary": True}
        self._way = stream(ask, pod, namespace, command=[*_KEEPING, *words], **ways)
        self._socket, self._turn, self.usable = self._way.sock, threading.Lock(), True
        self._socket.settimeout(limit_s)

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self.send, data)

    async def read(self) -> bytes:
        return await asyncio.to_thread(self.next)

    async def close(self) -> None:
        self.usable = False
        with contextlib.suppress(OSError, WebSocketException):
            await asyncio.to_thread(self._way.close)

    def printed(self, limit_s: float = math.inf) -> str:
        """What it prints, to its end, or as far as it comes in time."""
        until_s = time.monotonic() + limit_s
        return b"".join(iter(lambda: self.next(until_s), b"")).decode(errors="replace")

    def next(self, until_s: float = math.inf) -> bytes:
        """The next bytes of its output; none at its end, and at a moment of the monotonic clock."""
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

    def send(self, data: bytes) -> None:
        """Gives it input."""
        with self._turn:
            self._socket.send_binary(bytes((STDIN,)) + data)
