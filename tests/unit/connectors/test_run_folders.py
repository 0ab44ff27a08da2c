"""The folder of a run at a place: its owner's alone, gone after a success, and after some days otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.transfer.store.blob_store import Store, evict
from medweave_connectors.transfer.store.folder_commands import (
    MARK,
    NOT_OURS,
    STORE,
    make,
    read_free,
    remove,
    remove_traces,
)
from medweave_core.runlog.run_ownership import RunOwner
from support.engine import FILE, run, start, wait_until, write_workflow
from support.fake_cluster import Cluster, fake_cluster

DAY_S = 86400
GOOD = "echo done > result.txt"
OWNER = RunOwner("run", "0123456789abcdef")
FULL = Store(f"WORKDIR/{STORE}", 0.0)
OLDER = RunOwner("lung-20260801-120000-ab12", "")


def shell(line: str) -> None:
    subprocess.run(["sh", "-c", line], check=True)


def code_of(line: str) -> int:
    return subprocess.run(["sh", "-c", line], check=False).returncode


def content(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def aged(folder: Path, days: float, mark: str | None = None) -> Path:
    """Create a folder without a change for so many days; marked as the folder of the run with its name, or by `mark`."""
    (folder / "job").mkdir(parents=True)
    (folder / MARK).write_text(f"{folder.name} fedcba9876543210" if mark is None else mark)
    (folder / "job" / "ct.dcm").touch()
    for path in (folder / "job" / "ct.dcm", folder / "job", folder / MARK, folder):
        os.utime(path, (time.time() - days * DAY_S,) * 2)
    return folder


def test_the_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    workdir = tmp_path / "it's work"
    shell(make(str(workdir), OWNER, keep_days=14))
    assert [path.stat().st_mode & 0o777 for path in (workdir, workdir / "run")] == [0o700, 0o700]


def test_what_is_old_and_ours_goes_and_nothing_else(tmp_path: Path) -> None:
    old, young = aged(tmp_path / "old", 16), aged(tmp_path / "young", 12)
    alive = aged(tmp_path / "alive", 30)
    (alive / "job" / "new").touch()
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    os.utime(stranger, (0, 0))
    shell(make(str(tmp_path), OWNER, keep_days=14))
    assert not old.exists()
    assert all(path.exists() for path in (young, alive, stranger, tmp_path / "run"))


@pytest.mark.parametrize("has_store", [False, True])
def test_who_has_no_store_loses_nothing_of_the_kind(tmp_path: Path, has_store: bool) -> None:
    mine, workdir = tmp_path / "home" / "a.spare", tmp_path / "work"
    mine.mkdir(parents=True)
    os.utime(mine, (0, 0))
    if has_store:
        (workdir / STORE).mkdir(parents=True)
    for line in (make(str(workdir), OWNER, keep_days=14), remove_traces(str(workdir), OWNER)):
        subprocess.run(["sh", "-c", line], check=True, cwd=mine.parent)
    assert mine.exists()


def test_only_a_runs_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shell(remove(str(tmp_path), OWNER))
    assert (tmp_path / "run").exists()
    (tmp_path / "run").rmdir()
    shell(make(str(tmp_path), OWNER, keep_days=14))
    shell(remove(str(tmp_path), OWNER))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["folder", "marked by an older version", "another run's", "file", "link"])
def test_a_folder_that_the_run_did_not_create_is_neither_used_nor_removed(tmp_path: Path, kind: str) -> None:
    workdir, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    for folder in (workdir, elsewhere):
        folder.mkdir()
    taken = workdir / "run"
    if kind == "file":
        taken.write_text("a result")
    elif kind == "link":
        taken.symlink_to(elsewhere)
    else:
        taken.mkdir()
        (taken / "result").write_text("a result")
    if kind == "another run's":
        (taken / MARK).write_text("run fedcba9876543210")
    elif kind == "marked by an older version":
        (taken / MARK).touch()
    before = content(tmp_path)
    assert code_of(make(str(workdir), OWNER, keep_days=14)) == NOT_OURS
    for line in (remove(str(workdir), OWNER), remove_traces(str(workdir), OWNER)):
        assert code_of(line) == 0, "nothing of the run is there"
    assert content(tmp_path) == before


def test_a_folder_is_created_once_and_shared_by_the_locations_of_the_run(tmp_path: Path) -> None:
    line = make(str(tmp_path), OWNER, keep_days=14)
    started = [subprocess.Popen(["sh", "-c", line], stdout=subprocess.DEVNULL) for _ in range(8)]
    assert [process.wait() for process in started] == [0] * 8
    assert content(tmp_path) == ["run", f"run/{MARK}"]
    assert (tmp_path / "run" / MARK).read_text() == "run 0123456789abcdef"


def test_a_run_that_has_lost_its_token_is_removed_where_its_name_is_generated(tmp_path: Path) -> None:
    shell(make(str(tmp_path), RunOwner(OLDER.run_id, "0123456789abcdef"), keep_days=14))
    shell(make(str(tmp_path), OWNER, keep_days=14))
    assert code_of(remove(str(tmp_path), OLDER)) == 0
    assert code_of(remove(str(tmp_path), RunOwner(OWNER.run_id, ""))) == NOT_OURS
    assert content(tmp_path) == ["run", f"run/{MARK}"]


def test_the_folder_of_an_older_version_is_removed_where_its_name_is_generated(tmp_path: Path) -> None:
    chosen = RunOwner("results", "")
    for name in (OLDER.run_id, "results"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARK).touch()
    assert code_of(remove(str(tmp_path), chosen)) == NOT_OURS
    assert code_of(remove_traces(str(tmp_path), chosen)) == NOT_OURS
    assert code_of(remove(str(tmp_path), OLDER)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize(
    ("name", "mark", "goes"),
    [
        ("run-1", "run-1 0123456789abcdef", True),
        ("run-1.new.Ab3xYz", "run-1 0123456789abcdef", True),
        ("my copy of run-1", "run-1 0123456789abcdef", False),
        ("lung-20260801-120000-ab12", "", True),
        ("results", "", False),
        ("results", "\xff\xfe" * 300, False),
    ],
)
def test_an_old_folder_is_removed_under_its_own_name_only(tmp_path: Path, name: str, mark: str, goes: bool) -> None:
    old = aged(tmp_path / name, 30, mark)
    shell(make(str(tmp_path), OWNER, keep_days=14))
    assert old.exists() is not goes


def test_a_store_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    mine, workdir = tmp_path / "mine", tmp_path / "work"
    (mine / "scan.spare").mkdir(parents=True)
    (mine / "scan.dcm").write_text("pixels")
    workdir.mkdir()
    (workdir / STORE).symlink_to(mine)
    for path in (mine / "scan.spare", mine / "scan.dcm"):
        os.utime(path, (0, 0))
    for line in (make(str(workdir), OWNER, keep_days=0), remove_traces(str(workdir), OWNER), evict(FULL)):
        shell(line.replace("WORKDIR", str(workdir)))
    assert content(mine) == ["scan.dcm", "scan.spare"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as started:
        yield started


def test_the_free_space_is_reported_with_the_folder(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["sh", "-c", make(str(tmp_path), OWNER, keep_days=14)], check=True, capture_output=True, text=True
    )
    disk = os.statvfs(tmp_path)
    assert read_free(ended.stdout) == pytest.approx(disk.f_bavail * disk.f_frsize / 2**20, rel=0.05)
    assert read_free("") is None
    assert read_free("df: no such thing") is None


@pytest.mark.slow
def test_a_queue_on_a_disk_that_is_too_small_gets_no_job(cluster: Cluster) -> None:
    storage = {"requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 128, "tmpdirMin": 10**9}}}
    ended = cluster.go({"first": (GOOD, storage)})
    assert ended.exit_code == 1
    assert "/first/0 requests 1000001024 MiB of disk (tmpdirMin and outdirMin)" in ended.stderr
    assert f"MiB in {cluster.folder}/site" in ended.stderr
    assert cluster.submitted == []


@pytest.mark.slow
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


@pytest.mark.slow
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
