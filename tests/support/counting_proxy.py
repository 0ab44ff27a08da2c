"""A proxy in the middle of a connection, which counts what crosses it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

READ_BYTES = 2**16


class Proxy:
    """A proxy to another port of this machine that counts bytes.

    Attributes:
        port: on 127.0.0.1.
        num_bytes: in both directions, so far.
    """

    def __init__(self, to_port: int) -> None:
        self._to, self.num_bytes = to_port, 0
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close the proxy."""
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._server.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(READ_BYTES):
                with self._lock:
                    self.num_bytes += len(data)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def counting_proxy(to_port: int) -> Iterator[Proxy]:
    """Yield the proxy, while the context lasts."""
    proxy = Proxy(to_port)
    try:
        yield proxy
    finally:
        proxy.close()
