"""The size limit of a site's store, and the order of eviction, over real ssh."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from medweave_connectors.host.errors import NoRoom
from medweave_connectors.transfer.store import blob_store
from medweave_connectors.transfer.store.blob_store import Store
from medweave_connectors.transfer.store.folder_commands import MARK, make, remove_traces
from medweave_core.runlog.run_ownership import RunOwner
from support.engine import wait_until
from support.store_runs import Runs
from support.transfers import replaced, transfer_sites

TOKEN = "0123456789abcdef"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    with transfer_sites(tmp_path) as at:
        created = Runs(at, tmp_path / "work", monkeypatch)
        created.next()
        yield created


def evict(at: Store, needed_bytes: int = 0) -> None:
    subprocess.run(["sh", "-c", blob_store.evict(at, needed_bytes=needed_bytes)], check=True)


def filled(folder: Path) -> Callable[[], list[str]]:
    """Write five blobs of 1 MiB: a was used last, c is in use."""
    (folder / "00").mkdir(parents=True)
    for name in "ebcda":
        (folder / "00" / name).write_bytes(bytes(2**20))
        time.sleep(0.02)
    (folder.parent / "used").hardlink_to(folder / "00" / "c")
    return lambda: sorted(file.name for file in (folder / "00").iterdir())


@pytest.mark.parametrize(
    ("limit_mib", "needed_mib", "remaining"),
    [(5, 0, "abcde"), (4, 0, "abcd"), (2.5, 0, "ac"), (0.1, 0, "c"), (5, 1, "abcd"), (5, 2, "acd"), (4, 99, "c")],
)
def test_least_recently_used_blobs_are_evicted_and_blobs_in_use_are_kept(
    tmp_path: Path, limit_mib: float, needed_mib: int, remaining: str
) -> None:
    names = filled(tmp_path / "store")
    evict(Store(str(tmp_path / "store"), limit_mib / 1024), needed_mib * 2**20)
    assert "".join(names()) == remaining


def test_the_limit_applies_to_all_data_classes_together(tmp_path: Path) -> None:
    for number, kind in enumerate(("identified", "derived")):
        folder = tmp_path / kind / "00"
        folder.mkdir(parents=True)
        (folder / str(number)).write_bytes(bytes(2**20))
        time.sleep(0.02)
    evict(Store(str(tmp_path), 1.5 / 1024, "identified"))
    assert [file.name for file in tmp_path.rglob("?")] == ["1"]


@pytest.mark.slow
def test_a_run_reduces_a_store_to_its_limit(runs: Runs) -> None:
    for n in range(3):
        (runs.at.source / f"scan{n}").write_bytes(os.urandom(2**20))
        runs.send(f"scan{n}")
        runs.next()
    for number in (1, 2, 3):
        runs.end(number)
        time.sleep(0.02)  # file system times have a resolution of some milliseconds
    assert len(runs.blobs()) == 3
    runs.at.settings["storeGiB"] = 1.5 / 1024
    runs.at.run_connected(lambda sites: sites.send("from-driver", "scan2"))
    assert runs.transfers[-1]["num_bytes"] == 0
    wait_until(lambda: len(runs.blobs()) == 1)
    assert [file.stat().st_nlink for file in runs.blobs()] == [2]


@pytest.mark.slow
def test_the_store_is_evicted_if_the_disk_is_full(runs: Runs) -> None:
    (runs.workdir / "run-1").joinpath("job").rmdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", runs.workdir], check=True)
    try:
        runs.next()
        for n in range(3):
            (runs.at.source / f"scan{n}").write_bytes(os.urandom(6 * 2**20))
        runs.send("scan0")
        runs.end(2)
        runs.next()
        assert runs.send("scan1")[0] == 6 * 2**20
        with pytest.raises(NoRoom, match="bytes are needed"):
            runs.send("scan2")
        assert (runs.at.target / "scan1").stat().st_size == 6 * 2**20, "blobs in use are kept"
    finally:
        subprocess.run(["umount", runs.workdir], check=True)


@pytest.mark.slow
def test_blobs_unused_for_days_are_removed_with_old_runs(runs: Runs) -> None:
    for name in ("old", "used"):
        (runs.at.source / name).write_bytes(name.encode())
        runs.send(name)
        runs.next()
    runs.end(1)
    for days, remaining in ((1, 2), (0, 1)):  # used less than a day ago; the change time cannot be set back
        line = make(str(runs.workdir), RunOwner(f"later-{days}", TOKEN), keep_days=days)
        subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL)
        assert len(runs.blobs()) == remaining


def test_pre_staged_folders_of_an_older_version_are_removed(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The folders are renamed first: an older driver that renames one into its run gets all of it or nothing.
    blobs = [runs.root / "derived" / "00" / name for name in ("pre-staged", "of a run")]
    blobs[0].parent.mkdir(parents=True)
    folders = [runs.root / "derived" / "lists" / "00" / name for name in ("11.spare", "22.spare-17")]
    for blob, folder in zip(blobs, folders, strict=True):
        blob.write_bytes(b"scan")
        (folder / "a folder").mkdir(parents=True)
        (folder / "a folder" / "a scan").hardlink_to(blob)
    (runs.workdir / "used").hardlink_to(blobs[1])
    replaced(tmp_path, "rm", f'echo "$@" >> "{tmp_path}/removed"; exec "$real" "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = make(str(runs.workdir), RunOwner("later", TOKEN), keep_days=14)
    subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL)
    assert list(folders[0].parent.iterdir()) == []
    assert [blob.read_bytes() for blob in blobs] == [b"scan"] * 2
    renamed = re.findall(r"-rf \S*/([12]{2}\.spare(?:-17)?\.gone\.\d+)\n", (tmp_path / "removed").read_text())
    assert len(renamed) == 2
    subprocess.run(["sh", "-c", remove_traces(str(runs.workdir), RunOwner("later", TOKEN))], check=True)
    assert [blob.exists() for blob in blobs] == [False, True]


@pytest.mark.slow
def test_cleaning_a_run_removes_its_blobs(runs: Runs) -> None:
    for name in ("first", "second"):
        (runs.at.source / name).write_bytes(name.encode())
        runs.send(name)
        runs.next()
    owner = RunOwner("run-1", TOKEN)
    (runs.workdir / "run-1" / MARK).write_text(owner.mark)
    subprocess.run(["sh", "-c", remove_traces(str(runs.workdir), owner)], check=True)
    assert not (runs.workdir / "run-1").exists()
    assert [file.read_bytes() for file in runs.blobs()] == [b"second"]
