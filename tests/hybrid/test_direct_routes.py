"""Copies that go straight: from pod to pod of two workloads, and between a login node of Slurm and a pod."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer.routes import via_driver
from support.direct_ends import Recorded, recorded
from support.helm_release import Tenant
from support.pod_runs import WORKDIR, pods_of
from support.testbed import Sites, unique
from support.testbed_ends import login_of, managed, pod_place, pods_connector, slurm_connectors, slurm_place, standing

MAKE = 'mkdir -p {0}/sub && head -c 20000000 /dev/urandom > {0}/blob && echo x > {0}/sub/"it\'s"; chmod 500 {0}/sub'
CLOSED = (48000, 48009)


@pytest.fixture(scope="module")
def pods(tenant: Tenant) -> Iterator[tuple[str, str]]:
    """Yield two workloads; the second has two pods."""
    names = unique("direct-a"), unique("direct-b")
    with ExitStack() as stack:
        for name, replicas in zip(names, (1, 2), strict=True):
            stack.enter_context(standing(tenant, pods_of(name, kind="StatefulSet", replicas=replicas)))
        tenant.call("kubectl", "wait", "--for=condition=Ready", f"pod/{names[1]}-1", "--timeout=30s")
        yield names


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded(monkeypatch)


@pytest.fixture
def pumped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that collects the arguments of each copy through this machine."""
    real, seen = via_driver.pump, []

    async def pump(*arguments: Any) -> None:
        seen.append(arguments)
        await real(*arguments)

    monkeypatch.setattr(via_driver, "pump", pump)
    return seen


def sent(
    connectors: dict[str, Any],
    source: ExecutionLocation,
    path: str,
    to: list[ExecutionLocation],
    target: str,
    **settings: Any,
) -> None:
    """Create a folder at the source and send it; the manager verifies the copy."""

    async def act() -> None:
        async with managed(connectors, **settings) as manager:
            result = await connectors[(source.wraps or source).deployment].run(
                source.wraps or source, [MAKE.format(shlex.quote(path))], capture_output=True
            )
            assert result[1] == 0, result
            manager.register_path(source, path)
            await manager.transfer_data(source, path, to, target)

    asyncio.run(asyncio.wait_for(act(), 120))


def test_pod_to_pods_of_another_workload(
    tenant: Tenant, pods: tuple[str, str], run: Recorded, pumped: list[Any]
) -> None:
    connectors = {name: pods_connector(tenant, name) for name in pods}
    name = unique("blob")
    sent(
        connectors, pod_place(pods[0]), f"{WORKDIR}/{name}", [pod_place(pods[1], n) for n in (0, 1)], f"{WORKDIR}/there"
    )
    assert [transfer["route"] for transfer in run.transfers] == ["direct"] * 2
    assert pumped == []
    looks = f"sha256sum < {WORKDIR}/{{}}/blob; ls {WORKDIR}/{{}}/sub"
    made = tenant.within(f"{pods[0]}-0", looks.format(name, name)).stdout
    assert "it's" in made
    assert [tenant.within(f"{pods[1]}-{n}", looks.format("there", "there")).stdout for n in (0, 1)] == [made] * 2
    listening = tenant.within(f"{pods[1]}-0", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert "python3 -I" not in listening, "nothing is left there"


def test_login_node_to_pod_and_back(
    tenant: Tenant,
    testbed: Sites,
    pods: tuple[str, str],
    shared_folder: Path,
    run: Recorded,
    pumped: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(testbed.layout.laptop_home))
    login = login_of(testbed)
    connectors = {pods[0]: pods_connector(tenant, pods[0]), **slurm_connectors(login)}
    name = unique("blob")
    sent(connectors, slurm_place(login), f"{shared_folder}/{name}", [pod_place(pods[0])], f"{WORKDIR}/{name}")
    sent(connectors, pod_place(pods[0]), f"{WORKDIR}/{name}-2", [slurm_place(login)], f"{shared_folder}/{name}-2")
    assert [transfer["route"] for transfer in run.transfers] == ["direct"] * 2, run.notices
    assert pumped == []


@contextmanager
def firewalled(testbed: Sites) -> Iterator[None]:
    """Block ports in the cluster that only this test uses."""
    rule = ["FORWARD", "-p", "tcp", "--dport", f"{CLOSED[0]}:{CLOSED[1]}", "-j", "DROP"]
    assert testbed.inside("kubernetes", "iptables", "-w", "-I", *rule).returncode == 0
    try:
        yield
    finally:
        testbed.inside("kubernetes", "iptables", "-w", "-D", *rule)


def test_ports_that_a_firewall_closes(
    tenant: Tenant, testbed: Sites, pods: tuple[str, str], run: Recorded, pumped: list[Any]
) -> None:
    connectors = {name: pods_connector(tenant, name) for name in pods}
    name = f"{WORKDIR}/{unique('blob')}"
    with firewalled(testbed):
        sent(connectors, pod_place(pods[0]), name, [pod_place(pods[1])], name, directPorts=CLOSED)
    (transfer,) = run.transfers
    assert transfer["route"] == "through-driver"
    assert "at the destination: no answer; at the source: no answer" in transfer["reason"]
    assert len(run.notices) == 1
    assert len(pumped) == 1
