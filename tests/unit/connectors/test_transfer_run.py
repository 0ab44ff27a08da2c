"""Copies between a laptop and an ssh site, with the real engine over real ssh."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import run, write_workflow
from support.engine_file import LOCAL, OURS, engine_file, ssh_site
from support.fake_cluster import fake_cluster
from support.ssh_server import SSHServer, ssh_server

MANAGERS = OURS | {"dataManager": {"type": "medweave.transfer", "config": {}}}
FOLDER = {"outputs": {"result": {"type": "Directory", "outputBinding": {"glob": "result"}}}}
AS_FILE, AS_FOLDER = '{"type": "File", "outputSource"', '{"type": "Directory", "outputSource"'
MAKE = "echo {} > run_report.json; mkdir result; echo one > result/one; echo two > 'result/the second'"
# Send a folder without its last file, and exit with status 0.
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
    write_workflow(
        folder,
        {"made": (script, FOLDER)},
        file=engine_file({"there": ssh_site(server.port, "${SITE}")}, managers=MANAGERS),
    )
    document = folder / "tiny.cwl"
    document.write_text(document.read_text(encoding="utf-8").replace(AS_FILE, AS_FOLDER), encoding="utf-8")


@pytest.mark.slow
def test_copied_files_and_bytes_are_recorded(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, MAKE)
    ended = run(tmp_path, environment={"SITE": str(tmp_path / "site")})
    assert ended.exit_code == 0, ended.stderr
    (event,) = ended.of_type("transfer.ended")
    facts = {key: event["data"][key] for key in ("from", "route", "bytes", "files")}
    assert facts == {"from": "there", "route": "to-driver", "bytes": 8, "files": 2}
    assert (tmp_path / "results" / "result" / "the second").read_text() == "two\n"
    assert str(tmp_path) not in (ended.record / "events.jsonl").read_text()


@pytest.mark.slow
def test_an_incomplete_copy_fails_the_run_and_is_removed(server: SSHServer, tmp_path: Path) -> None:
    # Fault D1 of the engine: it does not verify a copied folder, so the run would succeed.
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


@pytest.mark.slow
def test_a_folder_present_at_a_site_is_linked_and_unchanged(server: SSHServer, tmp_path: Path) -> None:
    # The engine copied the parts of a linked folder again, through the link, into the first step's input.
    make = "mkdir -p result/part/deep; echo one > result/one; echo two > result/part/two; echo three > result/part/deep/three"
    listing = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", 'cd "$0" && find . -type f | sort'],
        "inputs": {"folder": {"type": "Directory", "inputBinding": {}}, "after": "File?"},
        "outputs": {"files": {"type": "stdout"}},
    }
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {},
        "outputs": {name: {"type": "File", "outputSource": f"{name}/files"} for name in ("first", "second")},
        "steps": {
            "made": {
                "run": {"class": "CommandLineTool", "baseCommand": ["sh", "-c", make], "inputs": {}, **FOLDER},
                "in": {},
                "out": ["result"],
            },
            "first": {"run": listing | {"stdout": "first"}, "in": {"folder": "made/result"}, "out": ["files"]},
            "second": {
                "run": listing | {"stdout": "second"},
                "in": {"folder": "made/result", "after": "first/files"},
                "out": ["files"],
            },
        },
    }
    deployments = {"here": LOCAL, "there": ssh_site(server.port, "${SITE}")}
    targets = {"/made": {"deployment": "here"}, "/": {"deployment": "there"}}
    bound = engine_file(deployments, targets, managers=MANAGERS)
    write_workflow(tmp_path, {}, file=bound)
    (tmp_path / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    ended = run(tmp_path, environment={"SITE": str(tmp_path / "site")})
    assert ended.exit_code == 0, ended.stderr
    whole = "./one\n./part/deep/three\n./part/two\n"
    assert [(tmp_path / "results" / name).read_text() for name in ("first", "second")] == [whole, whole]
    sent = [event["data"] for event in ended.of_type("transfer.ended") if event["data"]["route"] == "from-driver"]
    assert [facts["files"] for facts in sent] == [3], "one copy of the whole folder"


@pytest.mark.slow
def test_files_sent_in_an_earlier_run_are_not_sent_again(server: SSHServer, tmp_path: Path) -> None:
    script = 'echo {} > run_report.json; cp -r "$1" result'
    deployments = {"here": LOCAL, "there": ssh_site(server.port, "${SITE}")}
    bound = engine_file(deployments, {"/": {"deployment": "there"}}, managers=MANAGERS)
    write_workflow(tmp_path, {"made": (script, FOLDER)}, file=bound)
    document = json.loads((tmp_path / "tiny.cwl").read_text().replace(AS_FILE, AS_FOLDER))
    document["inputs"] = {"data": "Directory"}
    document["steps"]["made"]["in"] = {"data": "data"}
    document["steps"]["made"]["run"]["inputs"] = {"data": {"type": "Directory", "inputBinding": {"position": 1}}}
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "one").write_text("scan")
    (tmp_path / "job.yml").write_text(json.dumps({"data": {"class": "Directory", "path": "scans"}}))
    site = tmp_path / "site"
    for sent, reused in ((4, 0), (0, 4)):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        ended = run(tmp_path, environment={"SITE": str(site)})
        assert ended.exit_code == 0, ended.stderr
        (facts,) = [event["data"] for event in ended.of_type("transfer.ended") if event["deployment"] == "there"]
        assert (facts["bytes"], facts["reused_bytes"]) == (sent, reused)
        assert (tmp_path / "results" / "result" / "one").read_text() == "scan"
        assert [file.name for file in site.iterdir()] == [".medweave-store"], "the run's folder is removed"


@pytest.mark.slow
def test_folders_are_copied_to_and_from_a_slurm_site(tmp_path: Path) -> None:
    # The Slurm connector wraps the login node's connector, which makes the copies.
    with fake_cluster(tmp_path) as cluster:
        login = ssh_site(cluster.server.port, f"{tmp_path}/site")
        hpc = {"type": "medweave.slurm", "wraps": "login", "config": {}}
        bound = engine_file({"login": login, "hpc": hpc}, {"/": {"deployment": "hpc"}}, managers=MANAGERS)
        script = 'echo {} > run_report.json; cp -r "$1" result'
        write_workflow(tmp_path, {"made": (script, FOLDER)}, file=bound)
        document = json.loads((tmp_path / "tiny.cwl").read_text().replace(AS_FILE, AS_FOLDER))
        document["inputs"] = {"data": "Directory"}
        document["steps"]["made"]["in"] = {"data": "data"}
        document["steps"]["made"]["run"]["inputs"] = {"data": {"type": "Directory", "inputBinding": {"position": 1}}}
        (tmp_path / "tiny.cwl").write_text(json.dumps(document))
        (tmp_path / "scans" / "empty").mkdir(parents=True)
        (tmp_path / "scans" / "it's 1").write_text("scan")
        (tmp_path / "job.yml").write_text(json.dumps({"data": {"class": "Directory", "path": "scans"}}))
        ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    facts = [
        (event["deployment"], event["data"]["route"], event["data"]["bytes"])
        for event in ended.of_type("transfer.ended")
    ]
    assert facts == [("hpc", "from-driver", 4), ("__LOCAL__", "to-driver", 4)]
    assert (tmp_path / "results" / "result" / "it's 1").read_text() == "scan"
    assert list((tmp_path / "results" / "result" / "empty").iterdir()) == []
