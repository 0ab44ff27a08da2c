"""A site's own store, over real ssh: what is there is linked and verified, not sent."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.errors import NoRoom
from medweave_connectors.placement.data_rules import CLASSES
from medweave_connectors.placement.folder_commands import STORE, make, remove_traces, without_spares
from medweave_connectors.transfer import manager, manifest, many, seal, store
from medweave_connectors.transfer.classes import Port
from medweave_connectors.transfer.guard import carrying
from medweave_connectors.transfer.store import Store
from support.engine import wait_until
from support.transfers import Places, Route, places, replaced

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
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."}
)


class Runs:
    """A site that several runs copy to, one after the other.

    Attributes:
        told: what each copy was recorded with.
    """

    def __init__(self, at: Places, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.workdir, self.told = at, workdir, list[dict[str, Any]]()
        self._number = 0
        monkeypatch.setattr(manager, "current", lambda: self._run)
        self.next()

    def next(self) -> Path:
        """Another run; where its copies come to."""
        self._number += 1
        run_id = f"run-{self._number}"
        self._run = SimpleNamespace(run_id=run_id, transfer_ended=lambda **facts: self.told.append(facts))
        self.at.target = self.workdir / run_id / "job"
        self.at.target.mkdir(parents=True)
        return self.at.target

    def end(self, number: int) -> None:
        """The folder of a run is removed, as after a success."""
        shutil.rmtree(self.workdir / f"run-{number}")

    def send(self, name: str, route: Route = "from-driver", *, writable: bool = False) -> tuple[int, int, int]:
        """What was sent in a run of its own: bytes, files, and bytes that were there."""
        self.at.at_work(lambda each: each.send(route, name, writable=writable))
        facts = self.told[-1]
        return facts["num_bytes"], facts["num_files"], facts["reused_bytes"]

    @property
    def root(self) -> Path:
        return self.workdir / STORE

    def blobs(self) -> list[Path]:
        return sorted(each for each in self.root.glob("*/*/*") if each.is_file())


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    with places(tmp_path) as at:
        yield Runs(at, tmp_path / "work", monkeypatch)


@pytest.fixture(params=["gnu", "busybox", "many"])
def each_kind(request: pytest.FixtureRequest, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The same at a site with the tools of GNU, at one with those of busybox, and as if the files were many."""
    if request.param == "many":
        monkeypatch.setattr(many, "MANY", 1)
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


def test_names_of_two_lines_are_sent_once_too(runs: Runs) -> None:
    # No seal can be told of them: what the store gave is listed.
    folder = cohort(runs.at)
    (folder / "two\nlines").write_bytes(b"x")
    runs.send("cohort")
    runs.next()
    assert runs.send("cohort")[0] == 0
    assert tree(runs.at.target / "cohort") == tree(folder)


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


def test_the_limit_is_that_of_all_classes_together(tmp_path: Path) -> None:
    for number, kind in enumerate(("identified", "derived")):
        folder = tmp_path / kind / "00"
        folder.mkdir(parents=True)
        (folder / str(number)).write_bytes(bytes(2**20))
        time.sleep(0.02)
    evict(Store(str(tmp_path), 1.5 / 1024, "identified"))
    assert [each.name for each in tmp_path.rglob("?")] == ["1"]


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


def test_two_copies_of_the_same_at_once(runs: Runs) -> None:
    folder = cohort(runs.at)
    shutil.copytree(folder, runs.at.source / "again")
    for number in (1, 2):
        runs.next()

        async def both(each: Places) -> None:
            await asyncio.gather(*(each.send("from-driver", name) for name in ("cohort", "again")))

        runs.at.at_work(both)
        assert sum(each["num_bytes"] for each in runs.told[-2:]) == (0 if number == 2 else 2 * size(folder))
        for name in ("cohort", "again"):
            assert tree(runs.at.target / name) == tree(folder)


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


def test_a_file_system_without_links_has_no_store(runs: Runs) -> None:
    folder = cohort(runs.at)
    runs.at.replace("tar", 'case "$1" in xzpf) exit 2;; esac; exec "$real" "$@"')
    for _ in range(2):
        assert runs.send("cohort")[0] == size(folder)
        assert tree(runs.at.target / "cohort") == tree(folder)
        runs.next()


# ---- what it may hold


def evict(at: Store, needed_bytes: int = 0) -> None:
    subprocess.run(["sh", "-c", store.evict(at, needed_bytes=needed_bytes)], check=True)


def filled(folder: Path) -> Callable[[], list[str]]:
    """Five blobs of 1 MiB, a used last, c in use."""
    (folder / "00").mkdir(parents=True)
    for name in "ebcda":
        (folder / "00" / name).write_bytes(bytes(2**20))
        time.sleep(0.02)
    (folder.parent / "used").hardlink_to(folder / "00" / "c")
    return lambda: sorted(each.name for each in (folder / "00").iterdir())


@pytest.mark.parametrize(
    ("limit_mib", "needed_mib", "left"),
    [(5, 0, "abcde"), (4, 0, "abcd"), (2.5, 0, "ac"), (0.1, 0, "c"), (5, 1, "abcd"), (5, 2, "acd"), (4, 99, "c")],
)
def test_those_go_first_whose_last_use_is_longest_ago_and_never_what_is_used(
    tmp_path: Path, limit_mib: float, needed_mib: int, left: str
) -> None:
    names = filled(tmp_path / "store")
    evict(Store(str(tmp_path / "store"), limit_mib / 1024), needed_mib * 2**20)
    assert "".join(names()) == left


@pytest.mark.parametrize(
    ("limit_mib", "needed_mib", "left", "stands"),
    [(5, 0, "abcde", True), (4, 0, "abce", False), (3, 0, "bce", False), (2, 0, "ce", False), (5, 1, "abce", False)],
)
def test_what_stands_ready_for_a_next_run_goes_before_all_of_them(
    tmp_path: Path, limit_mib: float, needed_mib: int, left: str, stands: bool
) -> None:
    # Its names make nobody's file a used one, and are not counted; but when they were made is the last use of their files.
    names = filled(tmp_path / "store")
    spares = [tmp_path / "store" / "derived" / "lists" / "00" / name for name in ("11.spare", "22.spare-17")]
    for spare, name in zip(spares, "be", strict=True):
        (spare / "a folder").mkdir(parents=True)
        (spare / "a folder" / name).hardlink_to(tmp_path / "store" / "00" / name)
        time.sleep(0.02)
    evict(Store(str(tmp_path / "store"), limit_mib / 1024), needed_mib * 2**20)
    assert ("".join(names()), [each.exists() for each in spares]) == (left, [stands] * 2)


def test_a_run_brings_a_store_back_to_its_limit(runs: Runs) -> None:
    for n in range(3):
        (runs.at.source / f"scan{n}").write_bytes(os.urandom(2**20))
        runs.send(f"scan{n}")
        runs.next()
    for number in (1, 2, 3):
        runs.end(number)
        time.sleep(0.02)  # a file system tells times of some milliseconds
    assert len(runs.blobs()) == 3
    runs.at.settings["storeGiB"] = 1.5 / 1024
    runs.at.at_work(lambda each: each.send("from-driver", "scan2"))
    assert runs.told[-1]["num_bytes"] == 0
    wait_until(lambda: len(runs.blobs()) == 1)
    assert [each.stat().st_nlink for each in runs.blobs()] == [2]


def test_without_room_the_store_gives_way(runs: Runs) -> None:
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
        assert (runs.at.target / "scan1").stat().st_size == 6 * 2**20, "what a live run uses stays"
    finally:
        subprocess.run(["umount", runs.workdir], check=True)


def test_what_nobody_has_used_for_so_long_goes_with_the_old_runs(runs: Runs) -> None:
    for name in ("old", "used"):
        (runs.at.source / name).write_bytes(name.encode())
        runs.send(name)
        runs.next()
    runs.end(1)
    for days, left in ((1, 2), (0, 1)):  # not a day ago; a file system's clock cannot be set back
        line = make(str(runs.workdir), f"later-{days}", keep_days=days)
        subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL)
        assert len(runs.blobs()) == left


def test_who_removes_what_stands_ready_takes_it_away_from_its_name_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run that gets it by a rename loses nothing of it to somebody who is removing it already.
    (tmp_path / "store" / "lists" / "00" / "11.spare").mkdir(parents=True)
    replaced(tmp_path, "rm", f'echo "$@" >> "{tmp_path}/removed"; exec "$real" "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    subprocess.run(["sh", "-c", without_spares()], check=True, cwd=tmp_path / "store")
    assert list((tmp_path / "store" / "lists" / "00").iterdir()) == []
    assert re.fullmatch(r"-rf \./lists/00/11\.spare\.gone\.\d+\n", (tmp_path / "removed").read_text())


def test_files_that_several_of_them_have_go_with_the_last_one(runs: Runs) -> None:
    # Cohorts that grow share files, and a file may be twice in one.
    blobs = [runs.root / "derived" / "00" / name for name in ("shared", "twice", "kept by a younger one")]
    blobs[0].parent.mkdir(parents=True)
    spares = [runs.root / "derived" / "lists" / "00" / name for name in ("11.spare", "22.spare", "33.spare")]
    names = [
        ("shared", 0),
        ("shared", 1),
        ("twice", 1),
        ("twice", 1),
        ("kept by a younger one", 0),
        ("kept by a younger one", 2),
    ]
    for blob in blobs:
        blob.write_text(blob.name)
    for number, (name, at) in enumerate(names):
        spares[at].mkdir(parents=True, exist_ok=True)
        (spares[at] / f"{number}").hardlink_to(runs.root / "derived" / "00" / name)
    for spare, days in zip(spares, (30, 20, 1), strict=True):
        os.utime(spare, (time.time() - days * 86400,) * 2)
    line = make(str(runs.workdir), "later", keep_days=14)
    subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL)
    assert [each.exists() for each in blobs] == [False, False, True]
    assert [each.exists() for each in spares] == [False, False, True]


@pytest.mark.parametrize("days", [1, 0])
def test_what_stood_ready_for_so_long_goes_with_its_files(runs: Runs, days: int) -> None:
    # Not a day ago; a file system's clock cannot be set back. What a run uses stays, and what has not stood so long.
    blobs = [runs.root / "derived" / "00" / name for name in ("spared", "of a run", "newer")]
    blobs[0].parent.mkdir(parents=True)
    spares = [runs.root / "derived" / "lists" / "00" / name for name in ("11.spare", "22.spare", "33.spare-17")]
    for blob, spare in zip(blobs, spares, strict=True):
        blob.write_bytes(b"scan")
        (spare / "a folder").mkdir(parents=True)
        (spare / "a folder" / "a scan").hardlink_to(blob)
    (runs.workdir / "used").hardlink_to(blobs[1])
    later = time.time() + 2 * 86400
    os.utime(spares[2], (later, later))
    line = make(str(runs.workdir), "later", keep_days=days)
    subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL)
    assert [each.exists() for each in blobs] == [days == 1, True, True]
    assert [each.exists() for each in spares] == [days == 1, days == 1, True]


def test_who_cleans_a_run_removes_what_came_with_it(runs: Runs) -> None:
    for name in ("first", "second"):
        (runs.at.source / name).write_bytes(name.encode())
        runs.send(name)
        runs.next()
    (runs.workdir / "run-1" / ".medweave-run").touch()
    subprocess.run(["sh", "-c", remove_traces(str(runs.workdir), "run-1")], check=True)
    assert not (runs.workdir / "run-1").exists()
    assert [each.read_bytes() for each in runs.blobs()] == [b"second"]


# ---- seals


def sealed(path: Path) -> str | None:
    words = " ".join(seal.command(str(path)))
    return seal.read(subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=True).stdout)


def told(path: Path) -> str | None:
    words = " ".join(manifest.command(str(path)))
    listing = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=True).stdout
    return seal.of(manifest.parse(listing))


@settings(max_examples=25, deadline=None)
@given(
    files=st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=4),
    folders=st.sets(NAMES, max_size=2),
    data=st.data(),
)
def test_a_seal_is_that_of_the_same_entries_only(
    files: dict[str, bytes], folders: set[str], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "root")
        root.mkdir()
        for folder in folders - files.keys():
            (root / folder).mkdir()
        for file, content in files.items():
            (root / file).write_bytes(content)
        first = sealed(root)
        odd = any(sign in path for path in (*files, *folders) for sign in "\\\n\r")
        assert told(root) == (None if odd else first)
        file = root / data.draw(st.sampled_from(sorted(files)))
        what = data.draw(st.sampled_from(["content", "gone", "folder", "renamed", "one more"]))
        if what == "content":
            file.write_bytes(file.read_bytes() + b"x")
        elif what in ("gone", "folder"):
            file.unlink()
        elif what == "renamed":
            file.rename(root / (file.name[:200] + "other"))
        else:
            (root / (file.name[:200] + "more")).mkdir(exist_ok=False)
        if what == "folder":
            file.mkdir()
        assert sealed(root) != first
