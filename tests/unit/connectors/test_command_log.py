"""The debug log of connector commands: one line each, without arguments, paths and secrets."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from pathlib import Path

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave.cli import main_command
from medweave_connectors.host.command_log import CommandLog, close_log, kind_of, open_log
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
from support.engine import run, write_workflow
from support.engine_file import engine_file, ssh_site
from support.fake_cluster import NEVER_AGAIN, fake_cluster

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z medweave\.connectors\.(local|ssh|slurm|pods) "
    r"site=[a-zA-Z0-9_-]+ command=[a-z0-9]+ exit=(-|\d+) seconds=\d+\.\d{3}( error=\w+)?"
)
SECRET = "patient-4711"
SLURM = {"type": "medweave.slurm", "wraps": "login", "config": {"reactions": NEVER_AGAIN}}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEDWEAVE_LOG", "debug")
    open_log(tmp_path)
    return tmp_path / "connector.log"


def lines_of(log: Path) -> list[str]:
    close_log()
    lines = log.read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    return [line.partition(" medweave.connectors.")[2].partition(" seconds=")[0] for line in lines]


def test_the_local_connector_logs_its_commands(log: Path, tmp_path: Path) -> None:
    connector = MedweaveLocalConnector("here", str(tmp_path))
    place = ExecutionLocation(name="__LOCAL__", deployment="here", local=True)

    async def act() -> None:
        await connector.run(place, ["mkdir", str(tmp_path / SECRET)], capture_output=True)
        await connector.run(place, ["test", "-e", f"/{SECRET}"], {"TOKEN": SECRET}, capture_output=True)
        await connector.run(place, [f"./{SECRET}.sh", SECRET], capture_output=True)
        await connector.run(place, ["sh", "-c", f"'exit 3; {SECRET}'"], workdir=str(tmp_path), job_name=f"/{SECRET}/0")
        async with await connector.get_stream_reader(["cat", str(log)], place) as stream:
            assert await stream.read()

    asyncio.run(act())
    assert lines_of(log) == [
        "local site=here command=mkdir exit=0",
        "local site=here command=test exit=1",
        "local site=here command=script exit=127",
        "local site=here command=mkdir exit=0",  # of the clean start of a job
        "local site=here command=job exit=3",
        "local site=driver command=stream exit=0",
    ]
    assert SECRET not in log.read_text()
    assert str(tmp_path) not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_command_that_raises_is_logged_with_the_type_of_its_error(log: Path) -> None:
    with pytest.raises(TimeoutError), CommandLog("ssh", "login").command("stat"):
        raise TimeoutError(SECRET)
    assert lines_of(log) == ["ssh site=login command=stat exit=-"]
    assert log.read_text().endswith(" error=TimeoutError\n")


def test_there_is_no_log_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDWEAVE_LOG", raising=False)
    open_log(tmp_path)
    with CommandLog("ssh", "login").command("stat"):
        pass
    assert not (tmp_path / "connector.log").exists()


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["/usr/bin/tar", "xf", "-"], "tar"),
        (["rm -rf /a"], "rm"),
        (["smith"], "script"),
        ([], "script"),
        ([""], "script"),
    ],
)
def test_only_common_programs_are_named(command: list[str], kind: str) -> None:
    assert kind_of(command) == kind


@pytest.mark.parametrize(("words", "value"), [(["run", "--debug"], "debug"), (["run"], ""), (["ps", "--debug"], "")])
def test_medweave_run_debug_sets_the_variable(monkeypatch: pytest.MonkeyPatch, words: list[str], value: str) -> None:
    class Command:
        DESCRIPTION = EPILOG = ""

        @staticmethod
        def add_options(parser: argparse.ArgumentParser) -> None: ...

        @staticmethod
        def run(namespace: argparse.Namespace) -> int:
            assert os.environ["MEDWEAVE_LOG"] == value
            return 0

    monkeypatch.setenv("MEDWEAVE_LOG", "")
    monkeypatch.setattr(main_command, "load_command", lambda name: Command)
    assert main_command.main(words) == 0


@pytest.mark.slow
def test_a_run_over_ssh_and_slurm_writes_the_log_into_its_folder(tmp_path: Path) -> None:
    with fake_cluster(tmp_path) as cluster:
        deployments = {"login": ssh_site(cluster.server.port, f"{tmp_path}/site"), "hpc": SLURM}
        text = engine_file(deployments, {"/": {"deployment": "hpc"}, "/second": {"deployment": "login"}})
        write_workflow(tmp_path, {"first": f"echo {SECRET} > result.txt", "second": "echo > result.txt"}, file=text)
        ended = run(tmp_path, environment={"MEDWEAVE_LOG": "debug"})
    assert ended.exit_code == 0, ended.stderr
    (log,) = (tmp_path / "runs").glob("*/connector.log")
    lines = lines_of(log)
    assert "ssh site=login command=job exit=0" in lines
    assert "slurm site=hpc command=job exit=0" in lines
    assert "slurm site=hpc command=sbatch exit=0" in lines
    assert SECRET not in log.read_text()
    assert str(tmp_path) not in log.read_text()
    assert "connectors.ssh" not in ended.stderr, "the log is not printed"
