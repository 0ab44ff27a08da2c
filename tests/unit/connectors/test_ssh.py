"""`medweave.ssh` over real ssh, to a server of the tests."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import psutil
import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable
from medweave_connectors.sites.ssh import sessions
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from medweave_connectors.sites.ssh.login import start
from support.connector_contract import NO_QUEUE, ConnectorContract
from support.connector_runs import SLEEPER, Site, gone, run_job, running, text_of, using
from support.engine import run, write_workflow
from support.engine_file import LOCAL, engine_file, ssh_site
from support.ssh_server import SSHServer, ssh_server

# Of the derivation of a key from a passphrase: the usual number takes a second.
FEW_ROUNDS: dict[str, Any] = {"rounds": 16, "ignore_few_rounds": True}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with ssh_server(tmp_path / "server") as started:
        yield started


def site_of(server: SSHServer, **keys: Any) -> Site:
    usual = {"nodes": [f"127.0.0.1:{server.port}"], "username": "me", "sshKey": str(server.key)}
    config = usual | {"knownHosts": str(server.known_hosts), "connectTimeout": 5} | keys
    return Site(
        connectors=lambda: [MedweaveSSHConnector("login", "/", **config)],
        folder=str(server.key.parent.parent / "site"),
        read=text_of,
        cut=server.cut,
        broken_from=r"transfer from .* broke off: no known reason \(exit status 255\)",
        broken_to=r"transfer to .* broke off: .*No space",
    )


class TestSSH(ConnectorContract, lacks=NO_QUEUE):
    @pytest.fixture
    def site(self, server: SSHServer) -> Site:
        return site_of(server)


@pytest.mark.slow
def test_a_job_begins_only_when_it_can_be_ended(server: SSHServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # One was begun before its process group was known here: who cancelled it in between left it behind.
    site, connected = site_of(server), asyncio.Event()

    async def never(process: Any) -> Any:
        await start(process)
        connected.set()
        await asyncio.Event().wait()

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        await connector.run(place, ["mkdir", "-p", site.work])
        monkeypatch.setattr(sessions, "start", never)
        going = asyncio.ensure_future(run_job(site, connector, place, SLEEPER))
        await connected.wait()
        await asyncio.sleep(0.5)  # the machine has got all of it
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        monkeypatch.undo()
        await asyncio.to_thread(gone, site)

    using(site, act)
    assert (running(site), site.read(f"{site.work}/begun")) == ([], "")


def test_memory_is_in_mib(server: SSHServer) -> None:
    # Fault C3 of the engine: KiB are taken for MiB, so that every request fits.
    async def act(connector: MedweaveSSHConnector, _place: ExecutionLocation) -> float:
        await connector.get_available_locations()
        (location,) = (await connector.get_available_locations()).values()
        return float(location.hardware.memory)

    assert using(site_of(server), act) == pytest.approx(psutil.virtual_memory().total / 2**20, rel=0.01)


def test_threads_set_by_a_profile_are_not_the_number_of_cores(
    server: SSHServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sessions of this server inherit it, as others do from a profile

    async def act(connector: MedweaveSSHConnector, _place: ExecutionLocation) -> float:
        (location,) = (await connector.get_available_locations()).values()
        return float(location.hardware.cores)

    assert using(site_of(server), act) == len(os.sched_getaffinity(0))


def strange_key(folder: Path, passphrase: str | None = None) -> str:
    path = folder / "strange"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(path), passphrase=passphrase, **FEW_ROUNDS)
    return str(path)


def refused(server: SSHServer, **keys: Any) -> str:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        raise AssertionError("it was let in")

    before = time.monotonic()
    with pytest.raises(SiteConfigError) as caught:
        using(site_of(server, **keys), act)
    assert time.monotonic() - before < 10
    return str(caught.value)


@pytest.mark.slow
def test_login_errors_name_their_setting(server: SSHServer, tmp_path: Path) -> None:
    text = refused(server, sshKey=strange_key(tmp_path))
    assert text.startswith("deployments.login.config.sshKey: 127.0.0.1:")
    assert f"refused the key {tmp_path / 'strange'} for user me" in text
    assert "config.sshKeyPassphraseFile" in refused(server, sshKey=strange_key(tmp_path, "secret"))
    assert "config.sshKey: " in refused(server, sshKey=str(server.known_hosts))
    text = refused(server, sshKey=str(tmp_path / "nothing"))
    assert "config.sshKey: " in text
    assert "nothing: No such file" in text
    assert "config.nodes: " in refused(server, nodes=["nowhere.invalid"])


def test_a_host_key_is_always_checked(server: SSHServer, tmp_path: Path) -> None:
    empty = tmp_path / "empty_hosts"
    empty.touch()
    text = refused(server, knownHosts=str(empty))
    assert text.startswith("deployments.login.config.knownHosts: ")
    assert f"ssh-keyscan -p {server.port} 127.0.0.1 >> {empty}" in text
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    empty.write_text(f"[127.0.0.1]:{server.port} {other}")
    assert "config.knownHosts" in refused(server, knownHosts=str(empty))
    assert "config.knownHosts" in refused(server, knownHosts=str(tmp_path / "no file"))
    assert "checkHostKey" not in MedweaveSSHConnector.get_schema()


@pytest.mark.slow
def test_a_passphrase_file_opens_the_key(server: SSHServer, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    asyncssh.read_private_key(str(server.key)).write_private_key(str(locked), passphrase="open up", **FEW_ROUNDS)
    (tmp_path / "passphrase").write_text("open up\n")

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> Any:
        return await connector.run(place, ["echo", "in"], capture_output=True)

    keys = {"sshKey": str(locked), "sshKeyPassphraseFile": str(tmp_path / "passphrase")}
    assert using(site_of(server, **keys), act) == ("in", 0)


def test_an_unreachable_machine_is_reported_soon(server: SSHServer, tmp_path: Path) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        raise AssertionError("it was let in")

    before = time.monotonic()
    with pytest.raises(SiteUnreachable):
        using(site_of(server, nodes=["127.0.0.1:1"]), act)
    assert time.monotonic() - before < 10


TARGETS = {"/last": {"deployment": "there"}, "/first": {"deployment": "here"}}
GOOD = "echo {} > run_report.json; echo done > result.txt"


@pytest.mark.slow
def test_a_run_over_ssh(server: SSHServer, tmp_path: Path) -> None:
    file = engine_file({"here": LOCAL, "there": ssh_site(server.port, "${SITE}")}, TARGETS)
    write_workflow(tmp_path, {"first": GOOD, "last": GOOD}, file=file)
    ended = run(tmp_path, environment={"SITE": str(tmp_path / "site")})
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").is_file()
    assert {event["job"]: event["deployment"] for event in ended.of_type("job.report")} == {
        "/first/0": "here",
        "/last/0": "there",
    }


def test_a_refused_key_ends_the_run_at_its_start(server: SSHServer, tmp_path: Path) -> None:
    # Not hours later, when the first job gets there.
    strange_key(tmp_path)
    file = engine_file({"here": LOCAL, "there": ssh_site(server.port, "${SITE}", key="strange")}, TARGETS)
    write_workflow(tmp_path, {"first": "sleep 30; " + GOOD, "last": GOOD}, file=file)
    before = time.monotonic()
    ended = run(tmp_path, environment={"SITE": str(tmp_path / "site")})
    assert ended.exit_code == 1
    assert time.monotonic() - before < 20
    assert ended.stderr.count("deployments.there.config.sshKey: 127.0.0.1:") == 1
    assert "Traceback" not in ended.stderr
    assert ended.of_type("run.ended")[0]["data"]["state"] == "failed"
