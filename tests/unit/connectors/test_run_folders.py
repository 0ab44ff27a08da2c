"""The folder of a run at a place: its owner's alone, gone after a success, and after some days otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.placement.folder_commands import MARK, STORE, make, read_free, remove, remove_traces
from support.engine import FILE, run, start, wait_until, write_workflow
from support.fake_cluster import Cluster, fake_cluster

DAY_S = 86400
GOOD = "echo done > result.txt"


def shell(line: str) -> None:
    subprocess.run(["sh", "-c", line], check=True)


def aged(folder: Path, days: float) -> Path:
    """A run's folder in which nothing has changed for so many days."""
    (folder / "job").mkdir(parents=True)
    (folder / MARK).touch()
    (folder / "job" / "ct.dcm").touch()
    for path in (folder / "job" / "ct.dcm", folder / "job", folder / MARK, folder):
        os.utime(path, (time.time() - days * DAY_S,) * 2)
    return folder


def test_the_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    workdir = tmp_path / "it's work"
    shell(make(str(workdir), "run", keep_days=14))
    assert [path.stat().st_mode & 0o777 for path in (workdir, workdir / "run")] == [0o700, 0o700]


def test_what_is_old_and_ours_goes_and_nothing_else(tmp_path: Path) -> None:
    old, young = aged(tmp_path / "old", 16), aged(tmp_path / "young", 12)
    alive = aged(tmp_path / "alive", 30)
    (alive / "job" / "new").touch()
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    os.utime(stranger, (0, 0))
    shell(make(str(tmp_path), "run", keep_days=14))
    assert not old.exists()
    assert all(path.exists() for path in (young, alive, stranger, tmp_path / "run"))


@pytest.mark.parametrize("has_store", [False, True])
def test_who_has_no_store_loses_nothing_of_the_kind(tmp_path: Path, has_store: bool) -> None:
    mine, workdir = tmp_path / "home" / "a.spare", tmp_path / "work"
    mine.mkdir(parents=True)
    os.utime(mine, (0, 0))
    if has_store:
        (workdir / STORE).mkdir(parents=True)
    for line in (make(str(workdir), "run", keep_days=14), remove_traces(str(workdir), "run")):
        subprocess.run(["sh", "-c", line], check=True, cwd=mine.parent)
    assert mine.exists()


def test_only_a_runs_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shell(remove(str(tmp_path), "run"))
    assert (tmp_path / "run").exists()
    shell(make(str(tmp_path), "run", keep_days=14))
    shell(remove(str(tmp_path), "run"))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as started:
        yield started


def test_the_free_space_is_told_with_the_folder(tmp_path: Path) -> None:
    told = subprocess.run(
        ["sh", "-c", make(str(tmp_path), "run", keep_days=14)], check=True, capture_output=True, text=True
    )
    disk = os.statvfs(tmp_path)
    assert read_free(told.stdout) == pytest.approx(disk.f_bavail * disk.f_frsize / 2**20, rel=0.05)
    assert read_free("") is None
    assert read_free("df: no such thing") is None


def test_a_queue_on_a_disk_that_is_too_small_gets_no_job(cluster: Cluster) -> None:
    asked = {"requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 128, "tmpdirMin": 10**9}}}
    ended = cluster.go({"first": (GOOD, asked)})
    assert ended.exit_code == 1
    assert "/first/0 asks for 1000001024 MiB of disk (tmpdirMin and outdirMin)" in ended.stderr
    assert f"MiB in {cluster.folder}/site" in ended.stderr
    assert cluster.submitted == []


def test_a_site_holds_nothing_of_a_run_that_did_well(cluster: Cluster) -> None:
    site, go = cluster.folder / "site", cluster.folder / "go"
    going = cluster.begin({"first": f"while [ ! -e {go} ]; do sleep 0.1; done; " + GOOD})
    wait_until(lambda: bool(cluster.submitted), 60)
    (folder,) = site.iterdir()
    assert folder.name == going.record.name
    assert folder.stat().st_mode & 0o777 == 0o700
    go.touch()
    assert going.wait(60).exit_code == 0, going.stderr
    assert list(site.iterdir()) == []


@pytest.mark.parametrize("end", ["failure", "signal", "wish"])
def test_a_site_keeps_the_folder_of_another_end(cluster: Cluster, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = {"failure": "exit 65", "signal": "sleep 60", "wish": GOOD}[end]
    write_workflow(cluster.folder, {"first": script}, file=cluster.file)
    going = start(cluster.folder, environment={"MEDWEAVE_KEEP_WORK": "1"} if end == "wish" else None)
    wait_until(lambda: bool(cluster.submitted), 60)
    if end == "signal":
        going.signal(signal.SIGINT)
    going.wait(60)
    assert (going.exit_code == 0) is (end == "wish")
    assert [path.name for path in (cluster.folder / "site").iterdir()] == [going.record.name]


def test_on_this_machine_too(tmp_path: Path) -> None:
    file = FILE.replace("type: medweave.local, config: {}", "type: medweave.local, workdir: scratch, config: {}")
    write_workflow(tmp_path, {"first": f"pwd > {tmp_path}/where; " + GOOD}, file=file)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "where").read_text().startswith(f"{tmp_path}/scratch/{ended.record.name}/")
    assert list((tmp_path / "scratch").iterdir()) == []
