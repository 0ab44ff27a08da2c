"""Cut connections of this process, as a network failure does; programs at the other end keep running."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def cut(host: str, port: int) -> None:
    """Shut all connections of this process to an address.

    Args:
        host: an address or a name.
    """
    there = {info[4][:2] for info in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # already closed, or without a peer
            if entry.is_socket():
                with socket.socket(fileno=os.dup(int(entry.name))) as ours:
                    if ours.getpeername()[:2] in there:
                        ours.shutdown(socket.SHUT_RDWR)
