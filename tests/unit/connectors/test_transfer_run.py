"""Copies between a laptop and an ssh site, by the real engine over real ssh."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import run, write_workflow
from support.ssh_server import SSHServer, ssh_server

FILE = """
version: v1.0
workflows:
  tiny:
    type: cwl
    config: {{file: tiny.cwl, settings: job.yml}}
    bindings: [{{step: /, target: {{deployment: there}}}}]
deployments:
  there:
    type: medweave.ssh
    workdir: "${{SITE}}"
    config: {{nodes: ["127.0.0.1:{port}"], username: me, sshKey: server/id_ed25519, knownHosts: server/known_hosts}}
scheduling: {{scheduler: {{type: medweave.scheduler, config: {{}}}}}}
dataManager: {{type: medweave.transfer, config: {{}}}}
database: {{type: medweave.database, config: {{}}}}
"""
FOLDER = {"outputs": {"result": {"type": "Directory", "outputBinding": {"glob": "result"}}}}
MAKE = "echo {} > run_report.json; mkdir result; echo one > result/one; echo two > 'result/the second'"
# Sends a folder without its last file, and says that all went well.
LOSES_A_FILE = """#!/bin/sh
case "$*" in
  *result*) cd "$(mktemp -d)" && cp -r "$4/result" . && rm "result/the second" && exec {tar} chf - result ;;
  *) exec {tar} "$@" ;;
esac
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with ssh_server(tmp_path / "server") as started:
        yield started


def write(folder: Path, server: SSHServer, script: str) -> None:
    write_workflow(folder, {"made": (script, FOLDER)}, file=FILE.format(port=server.port))
    document = folder / "tiny.cwl"
    as_file, as_folder = '{"type": "File", "outputSource"', '{"type": "Directory", "outputSource"'
    document.write_text(document.read_text(encoding="utf-8").replace(as_file, as_folder), encoding="utf-8")


def test_what_arrives_is_counted(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, MAKE)
    ended = run(tmp_path, environment={"SITE": str(tmp_path / "site")})
    assert ended.exit_code == 0, ended.stderr
    (event,) = ended.of_type("transfer.ended")
    facts = {key: event["data"][key] for key in ("from", "route", "bytes", "files")}
    assert facts == {"from": "there", "route": "to-driver", "bytes": 8, "files": 2}
    assert (tmp_path / "results" / "result" / "the second").read_text() == "two\n"
    assert str(tmp_path) not in (ended.record / "events.jsonl").read_text()


def test_a_copy_that_is_not_whole_fails_the_run_and_is_removed(server: SSHServer, tmp_path: Path) -> None:
    # Fault D1 of the engine: what arrived of a folder is never looked at; the run would end well.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "tar").write_text(LOSES_A_FILE.format(tar=shutil.which("tar")))
    (programs / "tar").chmod(0o755)
    server.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    write(tmp_path, server, MAKE)
    ended = run(tmp_path, environment={"SITE": str(tmp_path / "site")})
    assert ended.exit_code == 1
    assert "a copy from there to" in ended.stderr, ended.stderr
    assert not (tmp_path / "results" / "result").exists()
    assert ended.of_type("transfer.ended") == []
