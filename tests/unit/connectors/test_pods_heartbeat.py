"""The connection of a command over a websocket is not dropped while its reader is slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import CoreV1Api

from medweave_connectors.sites.pods.api.api_client import create_clients, load_configuration
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.exec.execution import execute
from support.api_server import NAMESPACE, ApiServer, pod_document

NUM_BYTES = 3 * 2**22


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as serving:
        serving.add(pod_document("w-0"))
        yield serving


def using(server: ApiServer, folder: Path, act: Any) -> Any:
    async def go() -> Any:
        server.write_kubeconfig(folder / "kubeconfig")
        clients = create_clients(await load_configuration(str(folder / "kubeconfig"), None), heartbeat_s=0.1)
        try:
            return await act(CoreV1Api(api_client=clients[1]))
        finally:
            for client in clients:
                await client.close()

    return asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.slow
def test_a_reader_that_is_slow_keeps_its_connection(server: ApiServer, tmp_path: Path) -> None:
    async def act(client: Any) -> tuple[int, int]:
        execution = await execute(
            client, NAMESPACE, "w-0:worker", ["sh", "-c", f"head -c {NUM_BYTES} /dev/zero >&2; exit 3"]
        )
        num_bytes = 0
        async for _, data in execution.output():
            if num_bytes // 2**20 != (num_bytes + len(data)) // 2**20:
                await asyncio.sleep(0.3)  # three heartbeats
            num_bytes += len(data)
        return num_bytes, execution.ended()

    assert using(server, tmp_path, act) == (NUM_BYTES, 3)


@pytest.mark.slow
def test_a_driver_that_is_busy_keeps_its_connection(server: ApiServer, tmp_path: Path) -> None:
    async def act(client: Any) -> tuple[bytes, int]:
        execution = await execute(client, NAMESPACE, "w-0:worker", ["sh", "-c", "sleep 1; echo out; exit 3"])
        collecting = asyncio.ensure_future(execution.collect())
        await asyncio.sleep(0.15)
        time.sleep(0.8)  # the event loop has no turn
        return await collecting

    assert using(server, tmp_path, act) == (b"out\n", 3)


@pytest.mark.slow
def test_a_far_end_that_does_not_answer_is_given_up(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medweave_connectors.sites.pods.api.channels.UNRESPONSIVE_S", 0.5)

    async def act(client: Any) -> None:
        execution = await execute(client, NAMESPACE, "w-0:worker", ["sleep", "30"])
        execution._channels._socket.ping = lambda *_: asyncio.sleep(0)  # type: ignore[attr-defined]  # nothing gets there
        with pytest.raises(PodLost, match="broke before the command had ended"):
            await execution.collect()

    using(server, tmp_path, act)
