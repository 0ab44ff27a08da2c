"""`medweave.ssh` through the user's open ControlMaster. Real sshd, real `ssh -M`; no new connection is let in."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from medweave_connectors.sites.ssh.control_master import Errors, MasterConnection
from medweave_connectors.sites.ssh.login import COMMAND, start
from support.connector_contract import NO_QUEUE, ConnectorContract
from support.connector_runs import Site, job, text_of, until, using
from support.sshd import USER, close_master, control_master, make_key, sshd


@pytest.fixture
def server_settings() -> list[str]:
    return []


@pytest.fixture
def config(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    server_settings: list[str],
) -> Iterator[Path]:
    """The user's configuration of `hpc`, which wants two keys; one of them is away when its master is open."""
    folder = tmp_path_factory.mktemp("m")  # a socket's path has at most 107 characters
    keys = [make_key(folder / "key"), make_key(folder / "factor")]
    with sshd(folder / "server", keys, "AuthenticationMethods publickey,publickey", *server_settings) as server:
        home = tmp_path / "home"
        (home / ".ssh").mkdir(parents=True)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        known = folder / "known_hosts"
        known.write_text(server.known_host)
        config = home / ".ssh" / "config"
        config.write_text(
            f"Host hpc\n  HostName 127.0.0.1\n  Port {server.port}\n  User {USER}\n  UserKnownHostsFile {known}\n"
            f"  IdentityFile {keys[0]}\n  IdentityFile {keys[1]}\n  ControlPath {folder}/%r-%C\n"
        )
        with control_master(config, "hpc"):
            keys[1].rename(folder / "away")
            # What suits a person at a terminal must not reach our sessions.
            with config.open("a") as more:
                more.write(
                    "  RequestTTY force\n  LocalForward 1 127.0.0.1:1\n  RemoteCommand false\n  ControlMaster auto\n"
                )
            yield config


def site_of(folder: Path, *, node: str = "hpc") -> Site:
    config = {"nodes": [node], "connectTimeout": 5}
    return Site(
        connectors=lambda: [MedweaveSSHConnector("login", "/", **config)],
        folder=str(folder / "site"),
        read=text_of,
        cut=kill_sessions,
        broken_from=r"transfer from .* broke off: no known reason \(exit status 255\)",
        broken_to=r"transfer to .* broke off: .*No space",
    )


def kill_sessions() -> None:
    """Ends the `ssh` of each session of this process; the master stays."""
    for process in psutil.Process().children():
        if "ControlMaster=no" in process.cmdline():
            process.send_signal(signal.SIGKILL)


class TestThroughTheOpenMaster(ConnectorContract, lacks=NO_QUEUE):
    @pytest.fixture
    def site(self, config: Path, tmp_path: Path) -> Iterator[Site]:
        yield site_of(tmp_path)
        subprocess.run(["ssh", "-F", config, "-O", "check", "hpc"], check=True, capture_output=True)

    @pytest.mark.slow
    def test_a_job_whose_process_group_is_killed_is_not_lost(self, site: Site, record: RunRecord) -> None:
        assert using(site, job(site, "kill -s TERM 0; sleep 9"))[1] == 143


@pytest.mark.slow
def test_a_command_whose_master_ends_is_not_sent_again(config: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        going = asyncio.create_task(connector.run(place, [f"echo x >> {begun}; sleep 1"], capture_output=True))
        await until(begun.exists)
        await asyncio.to_thread(close_master, config, "hpc")
        with pytest.raises(SiteUnreachable, match="exit code of a command there is unknown"):
            await going
        with pytest.raises(SiteConfigError, match="refused"):  # no prompt at the terminal, and no endless retries
            await connector.run(place, ["true"])

    using(site_of(tmp_path), act)
    time.sleep(1.5)
    assert begun.read_text() == "x\n"


@pytest.mark.slow
def test_without_the_master_a_new_connection_is_refused(config: Path, tmp_path: Path) -> None:
    close_master(config, "hpc")

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        raise AssertionError("it was let in")

    with pytest.raises(SiteConfigError, match="refused"):
        using(site_of(tmp_path), act)


@pytest.mark.slow
def test_a_jump_host_is_passed_through_its_open_master(config: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "inner_key")
    with sshd(tmp_path / "inner", [key]) as inner:
        known = tmp_path / "known_hosts"
        known.write_text(inner.known_host)
        with config.open("a") as more:
            more.write(f"Host node\n  HostName 127.0.0.1\n  Port {inner.port}\n  User {USER}\n  IdentityFile {key}\n")
            more.write(f"  UserKnownHostsFile {known}\n  ProxyJump hpc\n")

        async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> Any:
            return await connector.run(place, ["echo", '"${SSH_CONNECTION##* }"'], capture_output=True)

        assert using(site_of(tmp_path, node="node"), act) == (str(inner.port), 0)


@pytest.mark.slow
@pytest.mark.parametrize("server_settings", [["MaxSessions 2"]])
def test_sessions_that_the_server_refuses_wait_for_the_others(config: Path, tmp_path: Path) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> list[Any]:
        commands = [connector.run(place, ["sleep", "0.5;", "echo", str(n)], capture_output=True) for n in range(4)]
        return list(await asyncio.gather(*commands))

    assert using(site_of(tmp_path), act) == [(str(n), 0) for n in range(4)]


class Pieces:
    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self, _most: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "status"), [(b"a\nb\0c\0end 255\n", 255), (b"\0end 0\n", 0), (b"\0en", None), (b"\0end 1", None)]
)
def test_the_mark_is_found_across_chunks(text: bytes, status: int | None, size: int) -> None:
    async def go() -> tuple[bytes, int | None]:
        errors = Errors(Pieces(*(text[n : n + size] for n in range(0, len(text), size))), b"\0end ")
        seen = await errors.readline()
        while data := await errors.read():
            seen += data
        return seen, errors.exit_status

    assert asyncio.run(go()) == (text.removesuffix(f"\0end {status}\n".encode()), status)


@pytest.mark.slow
def test_a_slow_reader_gets_all_output() -> None:
    async def go() -> bytes:
        started = await start(await MasterConnection(lambda *options: ["sh", "-c"]).create_process(COMMAND))
        started.run("head -c 190000 /dev/zero")
        process = started.process
        errors = asyncio.create_task(_read_all(process.stderr))
        await asyncio.sleep(2)  # `ssh` has ended long ago; the pipe is full, and asyncio has stopped reading it
        data = await process.stdout.read(-1)
        await errors
        assert process.exit_status == 0
        return bytes(data)

    assert len(asyncio.run(asyncio.wait_for(go(), 30))) == 190000


async def _read_all(stream: Any) -> None:
    while await stream.read():
        pass
