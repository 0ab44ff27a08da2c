"""`medweave.ssh` through the user's open ControlMaster. Real sshd, real `ssh -M`; no new connection is let in."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.errors import SiteConfigError, SiteUnreachable, TimeLimitExceeded
from medweave_connectors.record import registry
from medweave_connectors.record.run import RunRecord
from medweave_connectors.ssh.connector import MedweaveSSHConnector
from medweave_connectors.ssh.master import Errors, MasterConnection
from support.engine import wait_until
from support.sshd import USER, close_master, control_master, make_key, sshd

Act = Callable[[MedweaveSSHConnector, ExecutionLocation], Awaitable[Any]]


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


def using(act: Act, **keys: Any) -> Any:
    async def go() -> Any:
        connector = MedweaveSSHConnector("login", "/", **({"nodes": ["hpc"], "connectTimeout": 5} | keys))
        try:
            await connector.deploy(False)
            (found,) = (await connector.get_available_locations()).values()
            return await act(connector, found.location)
        finally:
            await connector.undeploy(False)

    return asyncio.run(asyncio.wait_for(go(), 60))


def test_commands_go_through_the_open_master(config: Path) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> list[Any]:
        return [
            await connector.run(place, ["echo", "out;", "echo", "err", ">&2;", "exit", "3"], capture_output=True),
            await connector.run(place, ["exit", "255"], capture_output=True),
            await connector.run(place, ["if", "then"], capture_output=True),
            await connector.run(place, ["seq", "200000"], capture_output=True),
            await connector.run(place, ["cat"], capture_output=True),
            await connector.run(place, ["pwd"], workdir="/usr/lib", environment={"A": "`exit 9`"}, capture_output=True),
        ]

    told, last, wrong, long, no_input, there = using(act)
    assert told == ("out\nerr", 3)
    assert last == ("", 255), "ssh's own 255 is not a command's"
    assert wrong[1] == 2
    assert len(long[0].splitlines()) == 200000
    assert no_input == ("", 0)
    assert there == ("/usr/lib", 0)
    subprocess.run(["ssh", "-F", config, "-O", "check", "hpc"], check=True, capture_output=True)


def test_many_at_once(config: Path) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> Any:
        hanging = asyncio.create_task(connector.run(place, ["sleep", "30"], capture_output=True))
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(
            *(connector.run(place, ["echo", str(n)], capture_output=True) for n in range(30))
        )
        hanging.cancel()
        return [answer[0] for answer in answers if answer]

    assert using(act) == [str(n) for n in range(30)]


def test_files_go_there_and_back(config: Path, tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    (source / "sub").mkdir(parents=True)
    (source / "a").write_bytes(os.urandom(3_000_000))
    (source / "sub" / "b").write_text("b")
    there.mkdir()

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        await connector.copy_local_to_remote(str(source), str(there / "copy"), [place])
        await connector.copy_remote_to_local(str(there / "copy"), str(tmp_path / "back"), place)
        with pytest.raises(SiteUnreachable, match=r"transfer from .* broke off: cut \(exit status 255\)"):
            async with await connector.get_stream_reader(["printf 123; echo cut >&2; exit 255"], place) as stream:
                assert await stream.read(10) == b"123"
        with pytest.raises(SiteUnreachable, match=r"transfer to .* broke off: .*No space"):
            async with await connector.get_stream_writer(["cat > /dev/full"], place) as stream:
                await stream.write(b"x")

    using(act)
    for folder in (there / "copy", tmp_path / "back"):
        assert (folder / "a").read_bytes() == (source / "a").read_bytes()
        assert (folder / "sub" / "b").read_text() == "b"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    record = RunRecord(tmp_path / "runs", "lung")
    monkeypatch.setattr(registry, "_runs", {"": record})
    record.begin()
    record.job_scheduled("/train/0", deployment="login", service=None, location="hpc")
    return record


def job(script: str, folder: Path, **keywords: Any) -> Act:
    folder.mkdir(exist_ok=True)

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> Any:
        words = ["sh", "-c", shlex.quote(script)]
        return await connector.run(
            place, words, workdir=str(folder), capture_output=True, job_name="/train/0", **keywords
        )

    return act


def test_a_job_and_its_exit_code(config: Path, tmp_path: Path, record: RunRecord) -> None:
    assert using(job("echo x > made", tmp_path / "work")) == ("", 0)
    assert (tmp_path / "work" / "made").read_text() == "x\n"
    for code in (1, 70, 255):
        told = using(job(f"echo 'medweave-step train: NaN.' >&2; exit {code}", tmp_path / "work"))
        assert told == ("medweave-step train: NaN.", code)
    assert using(job("kill -KILL $$", tmp_path / "work"))[1] == 137
    assert using(job("kill -s TERM 0; sleep 9", tmp_path / "work"))[1] == 143, (
        "ended there, with its whole group: not lost"
    )


def sleeper(folder: Path) -> str:
    return f"echo $$ > {folder}/pid; sleep 60 & echo $! > {folder}/child; wait"


def gone(folder: Path) -> bool:
    pids = [int((folder / name).read_text()) for name in ("pid", "child")]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_a_job_past_its_time_limit_is_ended_with_all_its_processes(
    config: Path, tmp_path: Path, record: RunRecord
) -> None:
    with pytest.raises(TimeLimitExceeded, match="the time limit of 1 s"):
        using(job(sleeper(tmp_path), tmp_path / "work", timeout=1))
    assert gone(tmp_path)


def test_the_end_of_the_run_ends_its_jobs_and_leaves_the_master(
    config: Path, tmp_path: Path, record: RunRecord
) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        going = asyncio.ensure_future(job(sleeper(tmp_path), tmp_path / "work")(connector, place))
        while not (tmp_path / "child").exists():
            await asyncio.sleep(0.02)
        await connector.undeploy(False)
        with pytest.raises(asyncio.CancelledError):
            await going

    using(act)
    assert gone(tmp_path)
    subprocess.run(["ssh", "-F", config, "-O", "check", "hpc"], check=True, capture_output=True)


def test_a_command_whose_master_ends_is_not_sent_again(config: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        going = asyncio.create_task(connector.run(place, [f"echo x >> {begun}; sleep 1"], capture_output=True))
        while not begun.exists():
            await asyncio.sleep(0.02)
        await asyncio.to_thread(close_master, config, "hpc")
        with pytest.raises(SiteUnreachable, match="not known"):
            await going
        with pytest.raises(SiteConfigError, match="refused"):  # not asked for at the terminal, and not tried for ever
            await connector.run(place, ["true"])

    using(act)
    time.sleep(1.5)
    assert begun.read_text() == "x\n"


def test_a_job_whose_session_is_lost_is_not_taken_for_done(config: Path, tmp_path: Path, record: RunRecord) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        going = asyncio.ensure_future(job(sleeper(tmp_path), tmp_path / "work")(connector, place))
        while not (tmp_path / "child").exists():
            await asyncio.sleep(0.02)
        for each in psutil.Process().children():
            if any("child" in word for word in each.cmdline()):
                each.send_signal(signal.SIGKILL)
        with pytest.raises(SiteUnreachable, match="was lost"):
            await going

    using(act)
    assert gone(tmp_path)


def test_without_the_master_a_new_connection_is_refused(config: Path) -> None:
    close_master(config, "hpc")

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        raise AssertionError("it was let in")

    with pytest.raises(SiteConfigError, match="refused"):
        using(act)


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

        assert using(act, nodes=["node"]) == (str(inner.port), 0)


@pytest.mark.parametrize("server_settings", [["MaxSessions 2"]])
def test_a_session_that_the_server_refuses_is_told(config: Path) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        busy = [asyncio.create_task(connector.run(place, ["sleep", "30"], capture_output=True)) for _ in range(2)]
        await asyncio.sleep(0.5)
        with pytest.raises(SiteUnreachable, match=r"gave no session: .*refused"):
            await connector.run(place, ["true"])
        for each in busy:
            each.cancel()

    using(act)


class Pieces:
    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self, _most: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "status"), [(b"a\nb\0c\0end 255\n", 255), (b"\0end 0\n", 0), (b"\0en", None), (b"\0end 1", None)]
)
def test_the_mark_is_found_wherever_it_is_cut(text: bytes, status: int | None, size: int) -> None:
    async def go() -> tuple[bytes, int | None]:
        errors = Errors(Pieces(*(text[n : n + size] for n in range(0, len(text), size))), b"\0end ")
        seen = await errors.readline()
        while data := await errors.read():
            seen += data
        return seen, errors.exit_status

    assert asyncio.run(go()) == (text.removesuffix(f"\0end {status}\n".encode()), status)


def test_a_slow_reader_gets_all_that_was_said() -> None:
    async def go() -> bytes:
        process = await MasterConnection(lambda *options: ["sh", "-c"]).create_process("head -c 190000 /dev/zero")
        errors = asyncio.create_task(_read_all(process.stderr))
        await asyncio.sleep(3)  # `ssh` has ended long ago; the pipe is full, and asyncio has stopped reading it
        data = await process.stdout.read(-1)
        await errors
        assert process.exit_status == 0
        return bytes(data)

    assert len(asyncio.run(asyncio.wait_for(go(), 30))) == 190000


async def _read_all(stream: Any) -> None:
    while await stream.read():
        pass
