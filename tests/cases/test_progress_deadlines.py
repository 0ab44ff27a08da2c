"""Work at a site is waited for as long as it makes progress: commands over ssh and in pods, and copies through the driver."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host import deadlines, shells
from medweave_connectors.host.errors import SiteUnreachable, StreamCut
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from medweave_connectors.transfer.failures import TransferErrors
from medweave_connectors.transfer.routes import via_driver
from medweave_connectors.transfer.streams.local_programs import LocalReader, LocalWriter
from support.api_server import ApiServer, pod_document
from support.ssh_server import ssh_server

SILENCE_S = 1.5
BUSY = "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do :; done; echo digest"
QUIET = "echo begun; sleep 30"
Act = Callable[[Any, ExecutionLocation], Any]


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the deadlines from minutes to seconds."""
    monkeypatch.setattr(deadlines, "NO_PROGRESS_S", SILENCE_S)
    monkeypatch.setattr(shells, "PROBE_S", 0.3)


@pytest.fixture(params=["ssh", "pods"])
def using(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Act], Any]]:
    """Run something with a connector of each kind and its place."""

    def run(connector: Any, place: str, act: Act) -> Any:
        async def go() -> Any:
            await connector.deploy(True)
            try:
                return await act(connector, ExecutionLocation(name=place, deployment="there"))
            finally:
                await connector.undeploy(True)

        return asyncio.run(asyncio.wait_for(go(), 60))

    if request.param == "ssh":
        with ssh_server(tmp_path / "server") as server:
            node = f"127.0.0.1:{server.port}"
            keys = {"username": "me", "sshKey": str(server.key), "knownHosts": str(server.known_hosts)}
            yield lambda act: run(MedweaveSSHConnector("there", "/", [node], **keys), node, act)
    else:
        with ApiServer() as cluster:
            cluster.add(pod_document("w-0"))
            cluster.write_kubeconfig(tmp_path / "kubeconfig")
            keys = {"kubeconfig": str(tmp_path / "kubeconfig"), "selector": "app=w"}
            yield lambda act: run(MedweaveKubernetesConnector("there", str(tmp_path), **keys), "w-0:worker", act)


@pytest.mark.slow
@pytest.mark.case("pod-600s", expected="a hash that makes progress has no time limit, over ssh and in pods")
def test_command_with_progress_is_not_terminated(using: Callable[[Act], Any], seen: Callable[[object], None]) -> None:
    answer = using(lambda connector, place: connector.run(place, [BUSY], capture_output=True))
    seen(answer)
    assert answer == ("digest", 0)


@pytest.mark.slow
def test_stalled_command_is_terminated(using: Callable[[Act], Any]) -> None:
    async def act(connector: Any, place: ExecutionLocation) -> Any:
        with pytest.raises(SiteUnreachable, match=r"a command made no progress for \d+ s, after \d+ bytes") as caught:
            await connector.run(place, [QUIET], capture_output=True)
        assert str(caught.value).startswith(place.name)
        return await connector.run(place, ["echo", "next"], capture_output=True)

    assert using(act) == ("next", 0)


def copy_of(script: str, target: Path) -> None:
    source = LocalReader(["sh", "-c", script], "a transfer from there")
    asyncio.run(
        via_driver.pump(
            source, [LocalWriter(["sh", "-c", f"cat > {target}"], "a transfer")], 2**16, where="pods to login"
        )
    )


@pytest.mark.slow
def test_slow_copy_is_not_aborted(tmp_path: Path) -> None:
    copy_of("for n in 1 2 3 4 5; do echo $n; sleep 0.6; done", tmp_path / "got")
    assert (tmp_path / "got").read_text() == "1\n2\n3\n4\n5\n"


@pytest.mark.slow
def test_stalled_copy_is_aborted_with_place_bytes_and_seconds(tmp_path: Path) -> None:
    with pytest.raises(StreamCut) as caught:
        copy_of("printf 12345; sleep 30", tmp_path / "got")
    assert re.search(r"pods to login: a copy made no progress for \d+ s, after \d+ bytes", str(caught.value))
    assert caught.value.may_be_cut, "the copy resumes"

    async def nothing() -> object:
        return None

    failure = asyncio.run(TransferErrors("pods", "login").classify(caught.value, needed_bytes=5, read_source=nothing))
    assert "made no progress" in str(failure)


def test_deadline_restarts_with_progress() -> None:
    now = [0.0]
    deadline = deadlines.ProgressDeadline("a copy", "hpc", 10, clock=lambda: now[0])

    async def work() -> str:
        for _ in range(5):
            now[0] += 9
            deadline.progressed(2**20)
            await asyncio.sleep(0)
        return "done"

    assert asyncio.run(deadline.guard(work())) == "done"
    now[0] += 11

    async def stopped() -> None:
        await asyncio.Event().wait()

    with pytest.raises(deadlines.NoProgress, match="hpc: a copy made no progress for 11 s, after 5,242,880 bytes"):
        asyncio.run(deadline.guard(stopped()))
