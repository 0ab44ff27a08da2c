"""A pod that is deleted, or whose tar ends, during a copy to it: a typed error, and the next copy is whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException

from medweave_connectors.host.errors import StreamBroke
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
from support.direct_ends import Recorded, recorded
from support.helm_release import Tenant, until
from support.pod_runs import WORKDIR, pods_of
from support.testbed import unique
from support.testbed_ends import managed, pod_place, pods_connector, standing

MIB = 2**20
LAPTOP = ExecutionLocation(name="laptop", deployment="laptop", local=True)
ARRIVED = f"find {WORKDIR} -name blob -size +{8 * 2048} | grep -q ."  # blocks of 512 bytes


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded(monkeypatch)


async def deleted_in_the_middle(tenant: Tenant, pod: str) -> None:
    """Delete the pod as soon as a part of the file has arrived."""
    while (await asyncio.to_thread(tenant.within, pod, ARRIVED)).returncode != 0:
        await asyncio.sleep(0.02)
    await asyncio.to_thread(tenant.call, "kubectl", "delete", f"pod/{pod}", "--grace-period=0", "--force")


async def sent(connectors: dict[str, Any], source: ExecutionLocation, path: str, name: str, *, loses: Any) -> None:
    """Send a file to the first pod of a workload; `loses`, if any, deletes the pod at the same time."""
    async with managed(connectors) as manager:
        manager.register_path(source, path)
        losing = asyncio.ensure_future(loses()) if loses is not None else None
        try:
            await manager.transfer_data(source, path, [pod_place(name)], f"{WORKDIR}/copy/blob")
        finally:
            if losing is not None:
                await asyncio.wait_for(losing, 60)


def whole(tenant: Tenant, pod: str) -> str:
    return tenant.within(pod, f"sha256sum < {WORKDIR}/copy/blob").stdout.split()[0]


def next_pod(tenant: Tenant, pod: str) -> None:
    """Wait for the pod that replaces it in the StatefulSet."""
    words = ("kubectl", "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=20s")
    until(lambda: tenant.ended(*words).returncode == 0, limit_s=90, what="the next pod")


def test_pod_deleted_during_a_copy_from_the_driver(tenant: Tenant, tmp_path: Path, run: Recorded) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(os.urandom(256 * MIB))
    name = unique("lost")
    with standing(tenant, pods_of(name, kind="StatefulSet", replicas=1)) as pod:
        ends = {"laptop": MedweaveLocalConnector("laptop", "/"), name: pods_connector(tenant, name)}
        with pytest.raises(WorkflowExecutionException):
            asyncio.run(sent(ends, LAPTOP, str(blob), name, loses=lambda: deleted_in_the_middle(tenant, pod)))
        assert run.transfers == []
        next_pod(tenant, pod)
        ends = {"laptop": MedweaveLocalConnector("laptop", "/"), name: pods_connector(tenant, name)}
        asyncio.run(sent(ends, LAPTOP, str(blob), name, loses=None))
        assert whole(tenant, pod) == hashlib.sha256(blob.read_bytes()).hexdigest()
        assert len(run.transfers) == 1


def test_pod_deleted_during_a_copy_from_another_pod(tenant: Tenant, run: Recorded) -> None:
    names = unique("lost-a"), unique("lost-b")
    with (
        standing(tenant, pods_of(names[0], kind="StatefulSet", replicas=1)) as source,
        standing(tenant, pods_of(names[1], kind="StatefulSet", replicas=1)) as pod,
    ):
        assert tenant.within(source, f"head -c {256 * MIB} /dev/urandom > {WORKDIR}/blob").returncode == 0
        path = f"{WORKDIR}/blob"
        ends = {name: pods_connector(tenant, name) for name in names}
        with pytest.raises(WorkflowExecutionException):
            asyncio.run(
                sent(ends, pod_place(names[0]), path, names[1], loses=lambda: deleted_in_the_middle(tenant, pod))
            )
        assert run.transfers == []
        next_pod(tenant, pod)
        ends = {name: pods_connector(tenant, name) for name in names}
        asyncio.run(sent(ends, pod_place(names[0]), path, names[1], loses=None))
        assert whole(tenant, pod) == tenant.within(source, f"sha256sum < {path}").stdout.split()[0]
        assert [transfer["route"] for transfer in run.transfers] == ["direct"]


@pytest.mark.parametrize(
    ("command", "status"),
    [("head -c 1000000 && echo No space left on device >&2 && exit 2", 2), ("head -c 1000000", 0)],
)
def test_command_that_ends_early_reports_why_with_input_in_transit(tenant: Tenant, command: str, status: int) -> None:
    name = unique("early")

    async def send() -> None:
        async with managed({name: pods_connector(tenant, name)}) as manager:
            connector = manager.context.deployment_manager.get_connector(name)
            async with await connector.get_stream_writer(
                ["sh", "-c", f"exec > /dev/null; {command}"], pod_place(name)
            ) as to:
                for _ in range(64):
                    await to.write(bytes(MIB))

    with standing(tenant, pods_of(name, kind="StatefulSet", replicas=1)):
        if status:
            # The API server alone would report it after a minute, as a lost connection.
            with pytest.raises(StreamBroke, match="No space left on device") as caught:
                asyncio.run(send())
            assert caught.value.exit_status == status
        else:
            asyncio.run(send())
