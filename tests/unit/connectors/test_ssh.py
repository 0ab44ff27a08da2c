"""`medweave.ssh` over real ssh, to a server of the tests."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import psutil
import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.errors import SiteConfigError, SiteUnreachable, TimeLimitExceeded
from medweave_connectors.record import registry
from medweave_connectors.record.run import RunRecord
from medweave_connectors.ssh.connector import MedweaveSSHConnector
from support.engine import run, wait_until, write_workflow
from support.ssh_server import SSHServer, ssh_server

FIGURES = 'medweave-progress {"unit":"case","done":1,"total":2,"seconds_left":3.5,"detail":"x"}'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with ssh_server(tmp_path / "server") as started:
        yield started


def settings(server: SSHServer, **keys: Any) -> dict[str, Any]:
    usual = {"nodes": [f"127.0.0.1:{server.port}"], "username": "me", "sshKey": str(server.key)}
    return usual | {"knownHosts": str(server.known_hosts), "connectTimeout": 5} | keys


def using(
    server: SSHServer, act: Callable[[MedweaveSSHConnector, ExecutionLocation], Awaitable[Any]], **keys: Any
) -> Any:
    async def go() -> Any:
        connector = MedweaveSSHConnector("login", "/", **settings(server, **keys))
        try:
            await connector.deploy(False)
            (found,) = (await connector.get_available_locations()).values()
            return await act(connector, found.location)
        finally:
            await connector.undeploy(False)

    return asyncio.run(asyncio.wait_for(go(), 60))


def say(script: str) -> list[str]:
    return ["sh", "-c", shlex.quote(script)]


def test_commands_tell_their_output_and_exit_code(server: SSHServer) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> list[Any]:
        return [
            await connector.run(place, ["echo", "out;", "echo", "err", ">&2;", "exit", "3"], capture_output=True),
            await connector.run(place, ["if", "then"], capture_output=True),
            await connector.run(place, ["printf", "'no end'"], capture_output=True),
            await connector.run(place, ["seq", "200000"], capture_output=True),
            await connector.run(place, ["cat"], capture_output=True),
            await connector.run(place, ["pwd"], workdir="/usr/lib", environment={"A": "`exit 9`"}, capture_output=True),
            await connector.run(place, ["true"]),
        ]

    told, wrong, short, long, no_input, there, nothing = using(server, act)
    assert told == ("out\nerr", 3)
    assert wrong[1] == 2, "a syntax error is that command's own"
    assert short == ("no end", 0)
    assert len(long[0].splitlines()) == 200000
    assert no_input == ("", 0)
    assert there == ("/usr/lib", 0)
    assert nothing is None


def test_a_command_that_hangs_holds_up_no_other(server: SSHServer) -> None:
    # Fault C9 of the engine: its one shell runs all commands one after the other.
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> float:
        hanging = asyncio.create_task(connector.run(place, ["sleep", "30"], capture_output=True))
        await asyncio.sleep(0.1)
        before = time.monotonic()
        answers = await asyncio.gather(
            *(connector.run(place, ["echo", str(n)], capture_output=True) for n in range(30))
        )
        assert [answer[0] for answer in answers if answer] == [str(n) for n in range(30)]
        hanging.cancel()
        with pytest.raises(SiteUnreachable, match="did not end within 1 s"):
            await connector.run(place, ["sleep", "30"], capture_output=True, timeout=1)
        return time.monotonic() - before

    assert using(server, act) < 20


def test_a_command_whose_connection_is_cut_is_not_sent_again(server: SSHServer, tmp_path: Path) -> None:
    # Faults Q4 and C9 of the engine: its fall-back runs the line again; an sbatch in it would submit two jobs.
    begun = tmp_path / "begun"

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> Any:
        going = asyncio.create_task(connector.run(place, say(f"echo x >> {begun}; sleep 2"), capture_output=True))
        while not begun.exists():
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.cut)
        with pytest.raises(SiteUnreachable, match="not known"):
            await going
        return await connector.run(place, ["echo", "again"], capture_output=True)

    assert using(server, act) == ("again", 0), "a new connection is made for the next command"
    time.sleep(2.5)
    assert begun.read_text() == "x\n"


def test_memory_is_told_in_mib(server: SSHServer) -> None:
    # Fault C3 of the engine: KiB are taken for MiB, so that every request fits.
    async def act(connector: MedweaveSSHConnector, _place: ExecutionLocation) -> float:
        await connector.get_available_locations()
        (found,) = (await connector.get_available_locations()).values()
        return float(found.hardware.memory)

    assert using(server, act) == pytest.approx(psutil.virtual_memory().total / 2**20, rel=0.01)


def test_files_go_there_and_back(server: SSHServer, tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    (source / "sub").mkdir(parents=True)
    (source / "a").write_bytes(os.urandom(3_000_000))
    (source / "sub" / "b").write_text("b")
    there.mkdir()

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        await connector.copy_local_to_remote(str(source), str(there / "copy"), [place])
        await connector.copy_remote_to_local(str(there / "copy"), str(tmp_path / "back"), place)

    using(server, act)
    for folder in (there / "copy", tmp_path / "back"):
        assert (folder / "a").read_bytes() == (source / "a").read_bytes()
        assert (folder / "sub" / "b").read_text() == "b"


def test_a_transfer_that_breaks_off_is_an_error(server: SSHServer) -> None:
    # Fault D1 of the engine: the exit status of tar is dropped, and half a folder passes for all of it.
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        with pytest.raises(SiteUnreachable, match=r"transfer from .* broke off: cut \(exit status 1\)"):
            async with await connector.get_stream_reader(["printf 123; echo cut >&2; exit 1"], place) as stream:
                assert await stream.read(10) == b"123"
        with pytest.raises(SiteUnreachable, match=r"transfer to .* broke off: .*No space"):
            async with await connector.get_stream_writer(["cat > /dev/full"], place) as stream:
                await stream.write(b"x")

    using(server, act)


def strange_key(folder: Path, passphrase: str | None = None) -> str:
    path = folder / "strange"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(path), passphrase=passphrase)
    return str(path)


def refused(server: SSHServer, **keys: Any) -> str:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        raise AssertionError("it was let in")

    before = time.monotonic()
    with pytest.raises(SiteConfigError) as caught:
        using(server, act, **keys)
    assert time.monotonic() - before < 10
    return str(caught.value)


def test_what_is_wrong_with_the_way_in_is_said_with_its_setting(server: SSHServer, tmp_path: Path) -> None:
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


def test_a_passphrase_file_opens_the_key(server: SSHServer, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    asyncssh.read_private_key(str(server.key)).write_private_key(str(locked), passphrase="open up")
    (tmp_path / "passphrase").write_text("open up\n")

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> Any:
        return await connector.run(place, ["echo", "in"], capture_output=True)

    keys = {"sshKey": str(locked), "sshKeyPassphraseFile": str(tmp_path / "passphrase")}
    assert using(server, act, **keys) == ("in", 0)


def test_nobody_there_is_told_soon(server: SSHServer, tmp_path: Path) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        raise AssertionError("it was let in")

    before = time.monotonic()
    with pytest.raises(SiteUnreachable):
        using(server, act, nodes=["127.0.0.1:1"])
    assert time.monotonic() - before < 10


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    record = RunRecord(tmp_path / "runs", "lung")
    monkeypatch.setattr(registry, "_runs", {"": record})
    record.begin()
    record.job_scheduled("/train/0", deployment="login", service=None, location="127.0.0.1")
    return record


def job(
    script: str, folder: Path, **keywords: Any
) -> Callable[[MedweaveSSHConnector, ExecutionLocation], Awaitable[Any]]:
    folder.mkdir(exist_ok=True)

    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> Any:
        return await connector.run(
            place,
            say(script),
            environment={"VALUE": "`touch harm` $HOME"},
            workdir=str(folder),
            capture_output=True,
            job_name="/train/0",
            **keywords,
        )

    return act


def test_a_job_reports_and_its_report_comes_home(
    server: SSHServer, tmp_path: Path, record: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"""echo '{FIGURES}' >&2; printf %s "$VALUE" > value
        mkdir report; echo x > report/fragment.html; echo '{{}}' > run_report.json"""
    assert using(server, job(script, tmp_path / "work")) == ("", 0)
    assert (tmp_path / "work" / "value").read_text() == "`touch harm` $HOME"
    assert "case 1/2: x, 4 s left" in capsys.readouterr().err
    record.job_ended("/train/0", "completed")
    assert (record.folder / "reports" / "train" / "report" / "fragment.html").read_text() == "x\n"
    assert (record.folder / "reports" / "train" / "run_report.json").is_file()


def test_a_job_that_fails_says_why_in_its_own_words(server: SSHServer, tmp_path: Path, record: RunRecord) -> None:
    script = "echo 'medweave-step train: NaN.' >&2; exit 70"
    assert using(server, job(script, tmp_path / "work")) == ("medweave-step train: NaN.", 70)
    outcome = record.jobs["/train/0"].outcome
    assert outcome is not None
    assert outcome.kept_at == f"login:{tmp_path / 'work'}"
    assert using(server, job("kill -KILL $$", tmp_path / "work"))[1] == 137


def sleeper(folder: Path) -> str:
    return f"echo $$ > {folder}/pid; sleep 60 & echo $! > {folder}/child; wait"


def gone(folder: Path) -> bool:
    pids = [int((folder / name).read_text()) for name in ("pid", "child")]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_a_job_past_its_time_limit_is_ended_with_all_its_processes(
    server: SSHServer, tmp_path: Path, record: RunRecord
) -> None:
    with pytest.raises(TimeLimitExceeded, match="the time limit of 1 s"):
        using(server, job(sleeper(tmp_path), tmp_path / "work", timeout=1))
    assert gone(tmp_path)


def test_a_job_whose_connection_is_lost_is_ended_and_not_taken_for_done(
    server: SSHServer, tmp_path: Path, record: RunRecord
) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        going = asyncio.ensure_future(job(sleeper(tmp_path), tmp_path / "work")(connector, place))
        while not (tmp_path / "child").exists():
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.cut)
        with pytest.raises(SiteUnreachable, match="was lost"):
            await going

    using(server, act)
    assert gone(tmp_path)


def test_the_end_of_the_run_ends_its_jobs(server: SSHServer, tmp_path: Path, record: RunRecord) -> None:
    async def act(connector: MedweaveSSHConnector, place: ExecutionLocation) -> None:
        going = asyncio.ensure_future(job(sleeper(tmp_path), tmp_path / "work")(connector, place))
        while not (tmp_path / "child").exists():
            await asyncio.sleep(0.02)
        await connector.undeploy(False)
        with pytest.raises(asyncio.CancelledError):
            await going

    using(server, act)
    assert gone(tmp_path)


FILE = """
version: v1.0
workflows:
  tiny:
    type: cwl
    config: {{file: tiny.cwl, settings: job.yml}}
    bindings: [{{step: /last, target: {{deployment: there}}}}, {{step: /first, target: {{deployment: here}}}}]
deployments:
  here: {{type: medweave.local, config: {{}}}}
  there:
    type: medweave.ssh
    workdir: "${{SITE}}"
    config: {{nodes: ["127.0.0.1:{port}"], username: me, sshKey: {key}, knownHosts: server/known_hosts}}
scheduling: {{scheduler: {{type: medweave.scheduler, config: {{}}}}}}
database: {{type: medweave.database, config: {{}}}}
"""
GOOD = "echo {} > run_report.json; echo done > result.txt"


def test_a_run_over_ssh(server: SSHServer, tmp_path: Path) -> None:
    file = FILE.format(port=server.port, key="server/id_ed25519")
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
    file = FILE.format(port=server.port, key="strange")
    write_workflow(tmp_path, {"first": "sleep 30; " + GOOD, "last": GOOD}, file=file)
    before = time.monotonic()
    ended = run(tmp_path, environment={"SITE": str(tmp_path / "site")})
    assert ended.exit_code == 1
    assert time.monotonic() - before < 20
    assert ended.stderr.count("deployments.there.config.sshKey: 127.0.0.1:") == 1
    assert "Traceback" not in ended.stderr
    assert ended.of_type("run.ended")[0]["data"]["state"] == "failed"
