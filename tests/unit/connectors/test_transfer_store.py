"""A site's own store, over real ssh: what is there is linked and verified, not sent."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.policy.data_classes import Port
from medweave_connectors.policy.data_rules import CLASSES
from medweave_connectors.policy.transfer_rules import carrying
from medweave_connectors.transfer.store import many_files
from support.store_runs import Runs
from support.transfers import Places, Route, places

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
    with places(tmp_path) as at:
        found = Runs(at, tmp_path / "work", monkeypatch)
        found.next()
        yield found


@pytest.fixture(params=["gnu", "busybox", "many"])
def each_kind(request: pytest.FixtureRequest, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The same at a site with the tools of GNU, at one with those of busybox, and as if the files were many."""
    if request.param == "many":
        monkeypatch.setattr(many_files, "MANY", 1)
    if request.param == "busybox":
        busybox = shutil.which("busybox")
        if busybox is None:
            pytest.skip("no busybox here (apt-get install busybox)")
        for name in BUSYBOX:
            (runs.at.programs / name).symlink_to(busybox)
    return runs


def cohort(at: Places, name: str = "cohort") -> Path:
    """Files with odd names, one twice, one that can be run, one that is empty, in folders, one of them locked."""
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
    """Entries by name, with the mode of folders, and content and executability of files."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o111 != 0)
        if path.is_file()
        else path.stat().st_mode
        for path in (folder, *folder.rglob("*"))
    }


def size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


# ---- what a later run finds


@pytest.mark.slow
@pytest.mark.parametrize("route", ["from-driver", "through-driver"])
def test_a_second_run_is_sent_nothing(each_kind: Runs, route: Route) -> None:
    runs = each_kind
    folder = cohort(runs.at)
    assert runs.send("cohort", route) == (size(folder), 10, 0)
    first = runs.at.target / "cohort"
    assert tree(first) == tree(folder)
    second = runs.next() / "cohort"
    assert runs.send("cohort", route) == (0, 0, size(folder))
    assert tree(second) == tree(folder)
    assert (second / "tool").stat().st_ino == (first / "tool").stat().st_ino, "one file with two names"
    assert (second / "tool").stat().st_ino != (second / "same 1").stat().st_ino
    assert {each.stat().st_mode & 0o222 for each in second.rglob("*") if each.is_file()} == {0}
    assert runs.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_what_was_sent_stays_after_its_run(each_kind: Runs) -> None:
    runs = each_kind
    folder = cohort(runs.at)
    runs.send("cohort")
    runs.end(1)
    runs.next()
    assert runs.send("cohort")[0] == 0
    assert tree(runs.at.target / "cohort") == tree(folder)


def test_a_file_alone_under_whatever_name_it_comes(runs: Runs) -> None:
    (runs.at.source / "scan").write_bytes(b"content")
    (runs.at.source / "two\nlines").write_bytes(b"content")
    runs.send("scan")
    runs.next()
    assert runs.send("two\nlines") == (0, 0, 7)
    assert (runs.at.target / "two\nlines").read_bytes() == b"content"


@pytest.mark.slow
def test_names_of_two_lines_are_sent_once_too(runs: Runs) -> None:
    # No seal can be told of them: what the store gave is listed.
    folder = cohort(runs.at)
    (folder / "two\nlines").write_bytes(b"x")
    runs.send("cohort")
    runs.next()
    assert runs.send("cohort")[0] == 0
    assert tree(runs.at.target / "cohort") == tree(folder)


@pytest.mark.slow
def test_of_a_cohort_that_grew_only_what_is_new_is_sent(each_kind: Runs) -> None:
    runs = each_kind
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
def test_nothing_is_given_to_a_copy_of_another_class(each_kind: Runs) -> None:
    runs, port = each_kind, Port("/step", "input")
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
    folders = {each.name: each.stat().st_mode & 0o777 for each in runs.root.iterdir()}
    assert folders == {"identified": 0o700, "derived": 0o700, "derived+model": 0o700}
    inodes = [{each.stat().st_ino for each in (runs.root / name).rglob("*") if each.is_file()} for name in folders]
    assert sum(map(len, inodes)) == len(set().union(*inodes)), "no file is shared"


@pytest.mark.slow
def test_many_new_files_take_several_commands(runs: Runs) -> None:
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
def test_two_copies_of_the_same_at_once(runs: Runs) -> None:
    folder = cohort(runs.at)
    shutil.copytree(folder, runs.at.source / "again")
    for number in (1, 2):
        runs.next()

        async def both(each: Places) -> None:
            await asyncio.gather(*(each.send("from-driver", name) for name in ("cohort", "again")))

        runs.at.at_work(both)
        assert sum(each["num_bytes"] for each in runs.records[-2:]) == (0 if number == 2 else 2 * size(folder))
        for name in ("cohort", "again"):
            assert tree(runs.at.target / name) == tree(folder)


@pytest.mark.slow
def test_what_may_be_written_to_has_no_part_in_it(runs: Runs) -> None:
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


def test_a_copy_that_may_be_written_to_of_what_the_store_gave(runs: Runs) -> None:
    cohort(runs.at)

    async def both(each: Places) -> None:
        await each.send("from-driver", "cohort")
        await each.send("from-driver", "cohort", "mine", writable=True)

    runs.at.at_work(both)
    for name, writable in (("cohort", False), ("mine", True)):
        assert ((runs.at.target / name / "-dash").stat().st_mode & 0o200 != 0) == writable
    assert (runs.at.target / "mine" / "-dash").stat().st_nlink == 1


# ---- what may be wrong with it


@pytest.mark.slow
@pytest.mark.parametrize("forged", [False, True])
def test_a_byte_that_is_flipped_in_the_store(each_kind: Runs, forged: bool) -> None:
    # Each of its files is read whenever it is used: a time that has been set back hides nothing.
    runs = each_kind
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
    assert runs.send("cohort")[0] == 0, "the store has the right one now"


def test_what_the_store_lost_meanwhile_is_sent(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.send("cohort")
    for blob in runs.blobs()[::2]:
        blob.unlink()
    runs.next()
    runs.send("cohort")
    assert tree(runs.at.target / "cohort") == tree(folder)


@pytest.mark.slow
def test_where_the_rest_does_not_come_alone_all_of_it_is_sent(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.send("cohort")
    (folder / "new").write_bytes(b"new")
    runs.at.replace(
        "tar", f'case "$1" in xpf) if mkdir {runs.at.programs}/once; then exit 2; fi;; esac; exec "$real" "$@"'
    )
    runs.next()
    assert runs.send("cohort") == (size(folder), 11, 0)
    assert tree(runs.at.target / "cohort") == tree(folder)


def test_a_copy_that_is_given_up_leaves_what_others_use_read_only(runs: Runs) -> None:
    # It had names of the store's files already, and was removed with the rights to do so: those of the files, too.
    folder = cohort(runs.at)
    runs.send("cohort")
    before = [stat.S_IMODE(each.stat().st_mode) for each in runs.blobs()]
    assert {mode & 0o222 for mode in before} == {0}
    (folder / "new").write_bytes(b"new")
    begun = runs.at.programs / "begun"
    runs.at.replace("tar", f'case "$1" in xpf) touch "{begun}"; sleep 30; exit 2;; esac; exec "$real" "$@"')
    runs.next()

    async def given_up(each: Places) -> None:
        going = asyncio.create_task(each.send("from-driver", "cohort"))
        while not begun.exists():
            await asyncio.sleep(0.01)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going

    runs.at.at_work(given_up)
    assert runs.at.left() == []
    assert [stat.S_IMODE(each.stat().st_mode) for each in runs.blobs()] == before


@pytest.mark.parametrize("spoiled", ["somebody's", "a link", "a file"])
def test_a_folder_that_is_not_ours_is_no_store(runs: Runs, spoiled: str) -> None:
    folder = cohort(runs.at)
    if spoiled == "a file":
        runs.root.touch()
    elif spoiled == "a link":
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
def test_a_file_system_without_links_has_no_store(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.at.replace("tar", 'case "$1" in xzpf) exit 2;; esac; exec "$real" "$@"')
    for _ in range(2):
        assert runs.send("cohort")[0] == size(folder)
        assert tree(runs.at.target / "cohort") == tree(folder)
        runs.next()
