"""Commands that take or give much, over the real API server, kubelet and containerd: by SPDY, or by websocket where that is all."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence

import pytest

from medweave_connectors.sites.pods.api.channels import STDERR, STDOUT, WebsocketChannels
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.api.spdy import SpdyChannels
from medweave_connectors.sites.pods.exec.execution import execute
from support.helm_release import Tenant
from support.pod_runs import pods_of
from support.testbed import unique
from support.testbed_ends import managed, pod_place, pods_connector, standing

MIB = 2**20
Ended = tuple[type, dict[int, bytes], int]


async def done(tenant: Tenant, name: str, place: str, words: Sequence[str], stdin: bytes = b"") -> Ended:
    """Return the class of the channels, the bytes by channel, and the exit code."""
    async with managed({name: pods_connector(tenant, name)}) as manager:
        connector = manager.context.deployment_manager.get_connector(name)
        execution = await execute(
            connector.websocket, tenant.namespace, place, words, takes_input=bool(stdin), much=True
        )
        outputs: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}

        async def listen() -> None:
            async for channel, piece in execution.output():
                outputs[channel].append(piece)

        listening = asyncio.create_task(listen())
        if stdin:
            for start in range(0, len(stdin), MIB // 4):
                await execution.write(stdin[start : start + MIB // 4])
            await execution.close_input()
        await listening
        await execution.close()
        return type(execution._channels), {key: b"".join(pieces) for key, pieces in outputs.items()}, execution.ended()


def test_large_streams_in_both_directions_by_spdy(tenant: Tenant) -> None:
    name, stdin = unique("spdy"), os.urandom(24 * MIB)
    script = "cat; echo $((40 + 2)) >&2; exit 7"
    with standing(tenant, pods_of(name, kind="StatefulSet", replicas=1)):
        place = pod_place(name).name
        kind, outputs, code = asyncio.run(done(tenant, name, place, ["sh", "-c", script], stdin))
        assert (kind, code, outputs[STDERR]) == (SpdyChannels, 7, b"42\n")
        assert hashlib.sha256(outputs[STDOUT]).digest() == hashlib.sha256(stdin).digest()
        kind, outputs, code = asyncio.run(done(tenant, name, place, ["head", "-c", str(24 * MIB), "/dev/zero"]))
        assert (kind, code, outputs[STDOUT]) == (SpdyChannels, 0, bytes(24 * MIB))
        with pytest.raises(PodLost, match=r"no command can be started in .*missing"):
            asyncio.run(done(tenant, name, f"{place.partition(':')[0]}:missing", ["true"]))


def test_websocket_is_used_where_spdy_is_blocked(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    # A version of the protocol that does not exist, as behind a proxy that supports websockets only.
    monkeypatch.setattr(
        "medweave_connectors.sites.pods.api.api_client.UPGRADE", {"Connection": "Upgrade", "Upgrade": "none/1"}
    )
    name = unique("spdy")
    with standing(tenant, pods_of(name, kind="StatefulSet", replicas=1)):
        kind, outputs, code = asyncio.run(done(tenant, name, pod_place(name).name, ["cat"], b"by websocket"))
    assert (kind, code, outputs[STDOUT]) == (WebsocketChannels, 0, b"by websocket")
