"""How quick the way to a pod and back is, through the API server: by SPDY where that is let through, as a run's copies go."""

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
_TAKES = ("sh", "-c", f"head -c {NUM_BYTES} | wc -c")
_GIVES = ("head", "-c", str(NUM_BYTES), "/dev/urandom")


class NotMeasured(Exception):
    """The pod did not take or give what it should, or nobody was let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Bytes per second to a pod and from it, and whether the streams went by SPDY."""

    there: float
    back: float
    by_spdy: bool


def measured(kubeconfig: str, context: str | None, in_cluster: bool, namespace: str, pod: str, limit_s: float) -> Speed:
    """The speed of the way to a pod that runs.

    Args:
        limit_s: for each of the two directions.

    Raises:
        NotMeasured: see there.
    """
    try:
        return asyncio.run(_measured(kubeconfig, context, in_cluster, namespace, pod, limit_s))
    except TimeoutError:
        raise NotMeasured(f"{NUM_BYTES} bytes took more than {limit_s:.0f} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotMeasured(str(error) or type(error).__name__) from error


async def _measured(
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
        there, by_spdy = await _there(api, where, limit_s)
        return Speed(there=there, back=await _back(api, where, limit_s), by_spdy=by_spdy)
    finally:
        for each in clients:
            await each.close()


async def _there(api: Any, where: dict[str, str], limit_s: float) -> tuple[float, bool]:
    content = secrets.token_bytes(NUM_BYTES)
    async with asyncio.timeout(limit_s), _opened(api, where, _TAKES, takes_input=True) as (channels, by_spdy):
        began = time.monotonic()
        await channels.send(content)
        told = await _printed(channels, 1)
        seconds = time.monotonic() - began
    if told.strip() != str(NUM_BYTES).encode():
        raise NotMeasured(
            f"of {NUM_BYTES} bytes it says it got {told[:40].decode(errors='replace').strip() or 'nothing'}"
        )
    return NUM_BYTES / seconds, by_spdy


async def _back(api: Any, where: dict[str, str], limit_s: float) -> float:
    async with asyncio.timeout(limit_s), _opened(api, where, _GIVES, takes_input=False) as (channels, _):
        began = time.monotonic()
        told = await _printed(channels, NUM_BYTES)
        seconds = time.monotonic() - began
    if len(told) != NUM_BYTES:
        raise NotMeasured(f"{len(told)} of {NUM_BYTES} bytes came")
    return NUM_BYTES / seconds


@contextlib.asynccontextmanager
async def _opened(
    api: Any, where: dict[str, str], command: Sequence[str], *, takes_input: bool
) -> AsyncIterator[tuple[Channels, bool]]:
    """A command's channels, and whether they go by SPDY: as `sites.pods.exec.execution` opens them for much data."""
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
    """What a command prints, until it is as much as is waited for, or the command has ended."""
    told = bytearray()
    async for channel, data in channels.pieces():
        if channel == STDOUT:
            told += data
        if channel == STATUS or len(told) >= num_bytes:
            break
    return bytes(told)
