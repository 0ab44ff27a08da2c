"""How quick the way to a pod and back is: through the API server, as everything goes that this machine sends to pods."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from kubernetes import client
from kubernetes.stream import stream

NUM_BYTES = 8 * 2**20
_PIECE = 2**18


class NotMeasured(Exception):
    """The pod did not take or give what it should."""


def measured(api: client.ApiClient, namespace: str, pod: str, limit_s: float) -> tuple[float, float]:
    """Bytes per second to a pod that runs, and from it.

    Args:
        limit_s: for each of the two.

    Raises:
        ApiException: it may not be asked.
        NotMeasured: see there.
    """
    return _there(api, namespace, pod, limit_s), _back(api, namespace, pod, limit_s)


def printed(api: client.ApiClient, namespace: str, pod: str, command: Sequence[str], limit_s: float) -> str:
    """What a command prints in a pod that runs, as far as it came in time.

    Raises:
        ApiException: it may not be asked.
    """
    way = _opened(api, namespace, pod, command, limit_s)
    try:
        return _read(way, time.monotonic() + limit_s).decode(errors="replace")
    finally:
        way.close()


def _there(api: client.ApiClient, namespace: str, pod: str, limit_s: float) -> float:
    content = secrets.token_bytes(NUM_BYTES)
    way = _opened(api, namespace, pod, ["sh", "-c", f"head -c {NUM_BYTES} | wc -c"], limit_s)
    try:
        began = time.monotonic()
        for place in range(0, NUM_BYTES, _PIECE):
            if time.monotonic() - began > limit_s:
                raise NotMeasured(f"{place} bytes in {limit_s:.0f} s")
            way.write_stdin(content[place : place + _PIECE])
        told = _read(way, began + limit_s, until=b"\n")
        seconds = time.monotonic() - began
    finally:
        way.close()
    if told.strip() != str(NUM_BYTES).encode():
        raise NotMeasured(
            f"of {NUM_BYTES} bytes it says it got {told[:40].decode(errors='replace').strip() or 'nothing'}"
        )
    return NUM_BYTES / seconds


def _back(api: client.ApiClient, namespace: str, pod: str, limit_s: float) -> float:
    began = time.monotonic()
    way = _opened(api, namespace, pod, ["head", "-c", str(NUM_BYTES), "/dev/urandom"], limit_s)
    try:
        told = _read(way, began + limit_s)
        seconds = time.monotonic() - began
    finally:
        way.close()
    if len(told) != NUM_BYTES:
        raise NotMeasured(f"{len(told)} of {NUM_BYTES} bytes came within {limit_s:.0f} s")
    return NUM_BYTES / seconds


def _opened(api: client.ApiClient, namespace: str, pod: str, command: Sequence[str], limit_s: float) -> Any:
    ask = client.CoreV1Api(api).connect_get_namespaced_pod_exec
    ways = {"stdin": True, "stdout": True, "stderr": False, "tty": False, "_preload_content": False, "binary": True}
    way = stream(ask, pod, namespace, command=list(command), **ways)
    way.sock.settimeout(limit_s)  # else who takes nothing is waited for, and the pod stays
    return way


def _read(way: Any, until_s: float, *, until: bytes = b"") -> bytes:
    """What it prints, to its end, or to the end of a line."""
    told = bytearray()
    while time.monotonic() < until_s and not (until and until in told):
        way.update(timeout=1)
        if way.peek_stdout():
            told += way.read_stdout()
        elif not way.is_open():
            break
    return bytes(told)
