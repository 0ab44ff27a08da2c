"""A site's store, over real ssh: stored files are linked and verified, not sent."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.policy.data_classes import StepPort
from medweave_connectors.policy.data_rules import CLASSES
from medweave_connectors.policy.transfer_rules import carrying
from medweave_connectors.transfer.manifest import tree_digest
from support.store_runs import Runs
from support.transfers import Route, TransferSites, transfer_sites

BUSYBOX = (
    "tar",
    "find",
    "sha256sum",
    "sort",
    "stat",
    "base64",
    "awk",
    "xargs",
    "chmod",
    "rm",
    "mkdir",
    "df",
    "sed",
    "gzip",
)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    with transfer_sites(tmp_path) as at:
        created = Runs(at, tmp_path / "work", monkeypatch)
        created.next()
        yield created


@pytest.fixture(params=["gnu", "busybox", "many"])
def any_site(request: pytest.FixtureRequest, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return runs at a site with GNU tools, at one with busybox, and with the code for many files."""
    if request.param == "many":
        monkeypatch.setattr(tree_digest, "MANY", 1)
    if request.param == "busybox":
        busybox = shutil.which("busybox")
        if busybox is None:
            pytest.skip("no busybox here (apt-get install busybox)")
        for name in BUSYBOX:
            (runs.at.programs / name).symlink_to(busybox)
    return runs


def cohort(at: TransferSites, name: str = "cohort") -> Path:
    """Write files with unusual names, a duplicate, an executable and an empty one, in folders of which one is read-only."""
    folder = at.source / name
    (folder / "a locked one").mkdir(parents=True)
    (folder / "empty").mkdir()
    for n, odd in enumerate(
        ("-dash", 'it\'s "q"', "ümläut", "$HOME `id`", "a locked one/in it", "same 1", "\udcff\udcfe")
    ):
        (folder / odd).write_bytes(bytes([n]) * (5000 + n))
    (folder / "same 2").write_bytes((folder / "same 1").read_bytes())
    (folder / "tool").write_bytes((folder / "same 1").read_bytes())
    (folder / "tool").chmod(0o755)
    (folder / "nothing").touch()
    (folder / "a locked one").chmod(0o555)
    return folder


def tree(folder: Path) -> dict[str, Any]:
    """Return entries by name: the mode of folders, and the content and execute permission of files."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o111 != 0)
        if path.is_file()
        else path.stat().st_mode
        for path in (folder, *folder.rglob("*"))
    }


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# ---- later runs


@pytest.mark.slow
@pytest.mark.parametrize("route", ["from-driver", "through-driver"])
def test_a_second_run_sends_no_files(any_site: Runs, route: Route) -> None:
    runs = any_site
    folder = cohort(runs.at)
    assert runs.send("cohort", route) == (size(folder), 10, 0)
    first = runs.at.target / "cohort"
    assert tree(first) == tree(folder)
    second = runs.next() / "cohort"
    assert runs.send("cohort", route) == (0, 0, size(folder))
    assert tree(second) == tree(folder)
    assert (second / "tool").stat().st_ino == (first / "tool").stat().st_ino, "one file with two links"
    assert (second / "tool").stat().st_ino != (second / "same 1").stat().st_ino
    assert {file.stat().st_mode & 0o222 for file in second.rglob("*") if file.is_file()} == {0}
    assert runs.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_stored_files_stay_after_their_run(any_site: Runs) -> None:
    runs = any_site
    folder = cohort(runs.at)
    runs.send("cohort")
    runs.end(1)
    runs.next()
    assert runs.send("cohort")[0] == 0
    assert tree(runs.at.target / "cohort") == tree(folder)


def test_a_single_file_is_found_under_any_name(runs: Runs) -> None:
    (runs.at.source / "scan").write_bytes(b"content")
    (runs.at.source / "two\nlines").write_bytes(b"content")
    runs.send("scan")
    runs.next()
    assert runs.send("two\nlines") == (0, 0, 7)
    assert (runs.at.target / "two\nlines").read_bytes() == b"content"


@pytest.mark.slow
def test_names_with_line_breaks_are_sent_once(runs: Runs) -> None:
    # A tree digest of such names cannot be computed: linked files are listed.
    folder = cohort(runs.at)
    (folder / "two\nlines").write_bytes(b"x")
    runs.send("cohort")
    runs.next()
    assert runs.send("cohort")[0] == 0
    assert tree(runs.at.target / "cohort") == tree(folder)


@pytest.mark.slow
def test_only_new_files_of_a_larger_cohort_are_sent(any_site: Runs) -> None:
    runs = any_site
    folder = cohort(runs.at)
    runs.send("cohort")
    (folder / "-dash").write_bytes(b"changed")
    (folder / "new folder").mkdir()
    (folder / "new folder" / "new\none").write_bytes(b"new")
    runs.next()
    assert runs.send("cohort") == (10, 2, size(folder) - 10)
    assert tree(runs.at.target / "cohort") == tree(folder)
    runs.next()
    assert runs.send("cohort")[0] == 0


@pytest.mark.slow
def test_files_are_not_linked_across_data_classes(any_site: Runs) -> None:
    runs, port = any_site, StepPort("/step", "input")
    folder = cohort(runs.at)

    def sent(*classes: str) -> tuple[int, int, int]:
        rules = {"carries": {"/step": {"input": list(classes)}}, "mayHold": {"site": CLASSES}, "driver": []}
        runs.at.settings["dataRules"] = rules
        runs.next()
        with carrying(port):
            return runs.send("cohort")

    whole, nothing = (size(folder), 10, 0), (0, 0, size(folder))
    assert [sent("identified"), sent("derived"), sent("derived", "model")] == [whole, whole, whole]
    assert [sent("derived"), sent("identified"), sent("model", "derived")] == [nothing, nothing, nothing]
    assert tree(runs.at.target / "cohort") == tree(folder)
    folders = {file.name: file.stat().st_mode & 0o777 for file in runs.root.iterdir()}
    assert folders == {"identified": 0o700, "derived": 0o700, "derived+model": 0o700}
    inodes = [{file.stat().st_ino for file in (runs.root / name).rglob("*") if file.is_file()} for name in folders]
    assert sum(map(len, inodes)) == len(set().union(*inodes)), "no file is linked across classes"


@pytest.mark.slow
def test_many_new_files_are_stored_by_several_commands(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.send("cohort")
    for n in range(1500):
        (folder / f"{n:04}-{'x' * 100}").write_bytes(b"%d" % n)
    runs.next()
    assert runs.send("cohort")[1] == 1500
    assert tree(runs.at.target / "cohort") == tree(folder)
    runs.next()
    assert runs.send("cohort")[0] == 0


@pytest.mark.slow
def test_two_concurrent_copies_of_the_same_folder(runs: Runs) -> None:
    folder = cohort(runs.at)
    shutil.copytree(folder, runs.at.source / "again")
    for number in (1, 2):
        runs.next()

        async def both(sites: TransferSites) -> None:
            await asyncio.gather(*(sites.send("from-driver", name) for name in ("cohort", "again")))

        runs.at.run_connected(both)
        assert sum(transfer["num_bytes"] for transfer in runs.transfers[-2:]) == (
            0 if number == 2 else 2 * size(folder)
        )
        for name in ("cohort", "again"):
            assert tree(runs.at.target / name) == tree(folder)


@pytest.mark.slow
def test_writable_copies_are_not_stored(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.send("cohort", writable=True)
    assert not runs.root.exists()
    runs.next()
    runs.send("cohort")
    runs.next()
    assert runs.send("cohort", writable=True)[0] == size(folder)
    (runs.at.target / "cohort" / "-dash").write_bytes(b"mine")
    runs.next()
    assert runs.send("cohort")[0] == 0
    assert tree(runs.at.target / "cohort") == tree(folder)


def test_a_writable_copy_of_linked_files(runs: Runs) -> None:
    cohort(runs.at)

    async def both(sites: TransferSites) -> None:
        await sites.send("from-driver", "cohort")
        await sites.send("from-driver", "cohort", "mine", writable=True)

    runs.at.run_connected(both)
    for name, writable in (("cohort", False), ("mine", True)):
        assert ((runs.at.target / name / "-dash").stat().st_mode & 0o200 != 0) == writable
    assert (runs.at.target / "mine" / "-dash").stat().st_nlink == 1


# ---- damaged stores


@pytest.mark.slow
@pytest.mark.parametrize("forged", [False, True])
def test_a_flipped_byte_in_the_store_is_detected(any_site: Runs, forged: bool) -> None:
    # Files of the store are read at each use, so a restored modification time hides no change.
    runs = any_site
    folder = cohort(runs.at)
    runs.send("cohort")
    flipped = runs.at.target / "cohort" / "-dash"
    before = flipped.stat()
    flipped.chmod(0o644)
    flipped.write_bytes(b"\xff" + flipped.read_bytes()[1:])
    if forged:
        flipped.chmod(stat.S_IMODE(before.st_mode))
        os.utime(flipped, ns=(before.st_atime_ns, before.st_mtime_ns))
    runs.next()
    assert runs.send("cohort") == (5000, 1, size(folder) - 5000)
    assert tree(runs.at.target / "cohort") == tree(folder)
    runs.next()
    assert runs.send("cohort")[0] == 0, "the store was repaired"


def test_files_removed_from_the_store_are_sent_again(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.send("cohort")
    for blob in runs.blobs()[::2]:
        blob.unlink()
    runs.next()
    runs.send("cohort")
    assert tree(runs.at.target / "cohort") == tree(folder)


@pytest.mark.slow
def test_the_whole_folder_is_sent_if_missing_files_cannot_be_sent(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.send("cohort")
    (folder / "new").write_bytes(b"new")
    runs.at.replace(
        "tar", f'case "$1" in xpf) if mkdir {runs.at.programs}/once; then exit 2; fi;; esac; exec "$real" "$@"'
    )
    runs.next()
    assert runs.send("cohort") == (size(folder), 11, 0)
    assert tree(runs.at.target / "cohort") == tree(folder)


def test_a_canceled_copy_keeps_stored_files_read_only(runs: Runs) -> None:
    # A removed copy is made writable first: this must not change its files, which are linked from the store.
    folder = cohort(runs.at)
    runs.send("cohort")
    before = [stat.S_IMODE(file.stat().st_mode) for file in runs.blobs()]
    assert {mode & 0o222 for mode in before} == {0}
    (folder / "new").write_bytes(b"new")
    begun = runs.at.programs / "begun"
    runs.at.replace("tar", f'case "$1" in xpf) touch "{begun}"; sleep 30; exit 2;; esac; exec "$real" "$@"')
    runs.next()

    async def cancel(sites: TransferSites) -> None:
        copy_task = asyncio.create_task(sites.send("from-driver", "cohort"))
        while not begun.exists():
            await asyncio.sleep(0.01)
        copy_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copy_task

    runs.at.run_connected(cancel)
    assert runs.at.target_names() == []
    assert [stat.S_IMODE(file.stat().st_mode) for file in runs.blobs()] == before


@pytest.mark.parametrize("damage", ["another user's", "a link", "a file"])
def test_a_foreign_folder_link_or_file_is_not_used_as_a_store(runs: Runs, damage: str) -> None:
    folder = cohort(runs.at)
    if damage == "a file":
        runs.root.touch()
    elif damage == "a link":
        (runs.workdir / "elsewhere").mkdir()
        runs.root.symlink_to(runs.workdir / "elsewhere")
    else:
        runs.root.mkdir()
        os.chown(runs.root, 12345, 12345)
    for _ in range(2):
        assert runs.send("cohort")[0] == size(folder)
        assert tree(runs.at.target / "cohort") == tree(folder)
        runs.next()
    assert runs.blobs() == []


@pytest.mark.slow
def test_a_file_system_without_hard_links_has_no_store(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.at.replace("tar", 'case "$1" in xzpf) exit 2;; esac; exec "$real" "$@"')
    for _ in range(2):
        assert runs.send("cohort")[0] == size(folder)
        assert tree(runs.at.target / "cohort") == tree(folder)
        runs.next()
