"""Bandwidth to a pod and back through the API server, by SPDY unless a proxy blocks it, as with a run's copies."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes_asyncio.client import Configuration, CoreV1Api
from kubernetes_asyncio.config import load_incluster_config

from medweave_connectors.sites.pods.api.api_client import create_clients, load_configuration
from medweave_connectors.sites.pods.api.channels import PROTOCOL, STATUS, STDOUT, Channels

NUM_BYTES = 8 * 2**20
_HEARTBEAT_S = 20.0
_RECEIVE = ("sh", "-c", f"head -c {NUM_BYTES} | wc -c")
_SEND = ("head", "-c", str(NUM_BYTES), "/dev/urandom")


class SpeedNotMeasured(Exception):
    """The pod did not receive or send all bytes, or the connection failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Bytes per second to a pod and from it, and whether the streams used SPDY."""

    to_pod: float
    from_pod: float
    by_spdy: bool


def measure_speed(
    kubeconfig: str, context: str | None, in_cluster: bool, namespace: str, pod: str, limit_s: float
) -> Speed:
    """Measure the bandwidth to a running pod and back.

    Args:
        limit_s: time limit of each direction.

    Raises:
        SpeedNotMeasured: the measurement failed.
    """
    try:
        return asyncio.run(_measure_both(kubeconfig, context, in_cluster, namespace, pod, limit_s))
    except TimeoutError:
        raise SpeedNotMeasured(f"{NUM_BYTES} bytes took more than {limit_s:.0f} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise SpeedNotMeasured(str(error) or type(error).__name__) from error


async def _measure_both(
    kubeconfig: str, context: str | None, in_cluster: bool, namespace: str, pod: str, limit_s: float
) -> Speed:
    if in_cluster:
        configuration = Configuration()
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        configuration = await load_configuration(kubeconfig, context)
    clients = create_clients(configuration, heartbeat_s=_HEARTBEAT_S)
    try:
        api, where = CoreV1Api(api_client=clients[1]), {"name": pod, "namespace": namespace}
        to_pod, by_spdy = await _measure_to(api, where, limit_s)
        return Speed(to_pod=to_pod, from_pod=await _measure_from(api, where, limit_s), by_spdy=by_spdy)
    finally:
        for api_client in clients:
            await api_client.close()


async def _measure_to(api: Any, where: dict[str, str], limit_s: float) -> tuple[float, bool]:
    content = secrets.token_bytes(NUM_BYTES)
    async with asyncio.timeout(limit_s), _opened(api, where, _RECEIVE, takes_input=True) as (channels, by_spdy):
        began = time.monotonic()
        await channels.send(content)
        output = await _printed(channels, 1)
        seconds = time.monotonic() - began
    if output.strip() != str(NUM_BYTES).encode():
        raise SpeedNotMeasured(
            f"the pod received {output[:40].decode(errors='replace').strip() or 'none'} of {NUM_BYTES} bytes"
        )
    return NUM_BYTES / seconds, by_spdy


async def _measure_from(api: Any, where: dict[str, str], limit_s: float) -> float:
    async with asyncio.timeout(limit_s), _opened(api, where, _SEND, takes_input=False) as (channels, _):
        began = time.monotonic()
        output = await _printed(channels, NUM_BYTES)
        seconds = time.monotonic() - began
    if len(output) != NUM_BYTES:
        raise SpeedNotMeasured(f"{len(output)} of {NUM_BYTES} bytes arrived")
    return NUM_BYTES / seconds


@contextlib.asynccontextmanager
async def _opened(
    api: Any, where: dict[str, str], command: Sequence[str], *, takes_input: bool
) -> AsyncIterator[tuple[Channels, bool]]:
    """Yield a command's channels, and whether they use SPDY, opened as by `sites.pods.exec.execution` for much data."""
    words = {**where, "command": list(command), "stdin": takes_input, "stdout": True, "stderr": True, "tty": False}
    words["_preload_content"] = False
    channels: Channels
    by_spdy = True
    try:
        spdy = await (await api.connect_post_namespaced_pod_exec(**words))
        await spdy.open(takes_input=takes_input)
        channels = spdy
    except (aiohttp.ClientError, OSError):
        request = await api.connect_get_namespaced_pod_exec(**words, _headers=PROTOCOL)
        channels, by_spdy = await request, False
    try:
        yield channels, by_spdy
    finally:
        await channels.close()


async def _printed(channels: Channels, num_bytes: int) -> bytes:
    """Return a command's output, up to a number of bytes or its end."""
    output = bytearray()
    async for channel, data in channels.pieces():
        if channel == STDOUT:
            output += data
        if channel == STATUS or len(output) >= num_bytes:
            break
    return bytes(output)
