"""Copies of many and of large files from this machine, over real ssh: they are whole, or they are not there."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medweave_connectors.engine.data import manager
from medweave_connectors.host.errors import SourceUnreadable, TransferFailed
from medweave_connectors.transfer.agent import tree_stream
from medweave_connectors.transfer.manifest import local_scan, manifest
from medweave_connectors.transfer.routes import router
from medweave_connectors.transfer.store.folder_commands import STORE
from medweave_connectors.transfer.streams import transcoding, tree_stream_piece
from medweave_connectors.transfer.streams.tree_stream_piece import TreeStream
from support.engine import wait_until
from support.listings import listed
from support.transfers import Places, places

PATIENT = "Mustermann_Erika_1970"
NUM_FILES = 300


class Cohort:
    """A folder of many files, which is sent to a site with a store."""

    def __init__(self, at: Places, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.folder, self.workdir = at, at.source / "cohort", workdir
        self.told: dict[str, Any] = {}
        for number in range(NUM_FILES):
            file = self.folder / f"{PATIENT} {number % 3}" / f"{number}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(number.to_bytes(2, "big") * 200)
        run = SimpleNamespace(
            run_id="run-1",
            transfer_ended=lambda **facts: self.told.update(facts),
            deployment_notice=lambda *_: None,
        )
        monkeypatch.setattr(manager, "current", lambda: run)
        monkeypatch.setattr(router, "SMALL_BYTES", 0)
        at.target = workdir / "run-1" / "job"
        at.target.mkdir(parents=True)
        at.replace("tar", "exit 2")

    def send(self, **given: bool) -> None:
        self.at.at_work(lambda each: each.send("from-driver", "cohort", **given))
        self.arrived()

    def arrived(self) -> None:
        wanted, found = listed(self.folder), listed(self.at.target / "cohort")
        assert wanted.difference(found) == ""
        assert self.told["num_files"] == wanted.num_files

    def failed(self, kind: type[TransferFailed] = TransferFailed) -> str:
        with pytest.raises(kind) as raised:
            self.at.at_work(lambda each: each.send("from-driver", "cohort"))
        assert type(raised.value) is kind
        assert PATIENT not in str(raised.value)
        assert self.at.left() == []
        return str(raised.value)


@pytest.fixture
def cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cohort]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with places(tmp_path) as at:
        yield Cohort(at, tmp_path / "work", monkeypatch)


def spoiled_on_the_way(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """What is sent goes through a program, which is Python's standard input and output."""
    piece = TreeStream.by_this_machine

    def through(*given: Any) -> Any:
        made = piece(*given)
        line = f"{shlex.join(made.packing)} | {shlex.join([sys.executable, '-c', script])}"
        return replace(made, packing=["sh", "-c", line])

    monkeypatch.setattr(TreeStream, "by_this_machine", through)


FLIP = "import sys; d = bytearray(sys.stdin.buffer.read()); d[-100] ^= 1; sys.stdout.buffer.write(d)"


@pytest.mark.slow
def test_many_files_arrive_and_are_kept_without_tar(cohort: Cohort) -> None:
    cohort.send()
    trees = (cohort.workdir / STORE).glob
    wait_until(lambda: [each for each in trees("*/lists/*/*") if not each.name.endswith(".new")] != [])
    (tree,) = (each for each in trees("*/lists/*/*") if each.is_file())
    assert hashlib.sha256(tree.read_bytes()).hexdigest() == tree.parent.name + tree.name
    assert {each.stat().st_mode & 0o222 for each in cohort.at.target.rglob("*") if each.is_file()} == {0}
    names = {each.stat().st_nlink for each in cohort.at.target.rglob("*") if each.is_file()}
    assert names == {2}, "of the copy and of the store"


@pytest.mark.slow
def test_the_site_is_asked_while_this_machine_looks(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, look, ask = threading.Event(), local_scan.scan, router.Router.query_codecs

    def slow(path: str) -> manifest.Manifest | None:
        assert asked.wait(20)
        return look(path)

    async def heard(*given: Any) -> None:
        asked.set()
        await ask(*given)

    monkeypatch.setattr(local_scan, "scan", slow)
    monkeypatch.setattr(router.Router, "query_codecs", heard)
    cohort.send()


@pytest.mark.slow
def test_a_copy_of_the_same_waits_for_the_names_of_the_one_before(cohort: Cohort) -> None:
    cohort.at.replace("nice", 'sleep 1; exec "$@"')
    cohort.send()
    assert [each.suffix for each in (cohort.workdir / STORE).glob("*/lists/*/*")] == [".new"]
    cohort.at.target = cohort.workdir / "run-1" / "other"
    cohort.at.target.mkdir()
    cohort.at.at_work(lambda each: each.send("from-driver", "cohort"))
    assert cohort.told["num_bytes"] == 0


@pytest.mark.slow
def test_names_that_never_came_are_not_waited_for(cohort: Cohort) -> None:
    cohort.at.replace("nice", "exit 1")
    cohort.send()
    (waiting,) = (cohort.workdir / STORE).glob("*/lists/*/*")
    os.utime(waiting, (1, 1))
    cohort.at.replace("nice", 'exec "$@"')
    cohort.at.target = cohort.workdir / "run-1" / "other"
    cohort.at.target.mkdir()
    cohort.at.at_work(lambda each: each.send("from-driver", "cohort"))
    assert cohort.told["num_bytes"] > 0
    wait_until(lambda: not waiting.exists())
    assert waiting.with_suffix("").exists()


@pytest.mark.slow
def test_a_copy_that_may_be_written_to_is_nobody_elses(cohort: Cohort) -> None:
    cohort.send(writable=True)
    files = [each for each in (cohort.at.target / "cohort").rglob("*") if each.is_file()]
    assert {each.stat().st_mode & 0o200 for each in files} == {0o200}
    assert {each.stat().st_nlink for each in files} == {1}


@pytest.mark.slow
def test_a_folder_that_nobody_may_write_to_arrives_so(cohort: Cohort) -> None:
    (cohort.folder / f"{PATIENT} 1").chmod(0o555)
    cohort.at.replace("tar", 'exec "$real" "$@"')  # which sets the mode in the end
    cohort.send()
    assert (cohort.at.target / "cohort" / f"{PATIENT} 1").stat().st_mode & 0o777 == 0o555


@pytest.mark.slow
def test_few_bytes_in_many_files_go_by_tar_after_a_larger_copy(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site is asked once what it can; whoever sends little does not ask, and sends no blocks."""
    cohort.at.replace("tar", 'exec "$real" "$@"')
    shutil.copytree(cohort.folder, cohort.at.source / "second")

    async def act(each: Places) -> None:
        each.manager._store_gib = 0  # else it would be linked
        await each.send("from-driver", "cohort")
        monkeypatch.setattr(router, "SMALL_BYTES", 2**30)
        await each.send("from-driver", "second")

    cohort.at.at_work(act)
    assert listed(cohort.folder).difference(listed(cohort.at.target / "second")) == ""


def test_what_became_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(tree_stream.TreeNotSent, match="written to"):
        list(tree_stream.TreeSender(os.fsencode(tmp_path / "pipe")).pieces())


def large(cohort: Cohort) -> Path:
    """One large file and a small one, in the place of the many."""
    shutil.rmtree(cohort.folder)
    cohort.folder.mkdir()
    (cohort.folder / "small").write_bytes(b"small")
    file = cohort.folder / "large"
    file.write_bytes(os.urandom(tree_stream_piece.LARGE_BYTES))
    return file


@pytest.mark.slow
def test_large_files_arrive_and_are_kept_without_tar(cohort: Cohort) -> None:
    large(cohort)
    cohort.send()
    assert {each.stat().st_nlink for each in cohort.at.target.rglob("*") if each.is_file()} == {2}
    before = cohort.at.target
    cohort.at.target = cohort.workdir / "run-1" / "other"
    cohort.at.target.mkdir()
    cohort.at.replace("tar", 'exec "$real" "$@"')  # by which a few files are linked
    cohort.at.at_work(lambda each: each.send("from-driver", "cohort"))
    assert (cohort.at.target / "cohort" / "large").samefile(before / "cohort" / "large")
    assert cohort.told["num_bytes"] == 0


@pytest.mark.slow
def test_a_large_file_arrives_alone(cohort: Cohort) -> None:
    file = large(cohort)
    cohort.at.at_work(lambda each: each.send("from-driver", "cohort/large"))
    (found,) = (each for each in cohort.at.target.rglob("*") if each.is_file())
    assert found.read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_a_byte_of_a_large_file_flipped_on_the_way_is_noticed(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    large(cohort)
    spoiled_on_the_way(monkeypatch, FLIP.replace("-100", "-99999"))
    assert "1 of 2 files with other content" in cohort.failed()


@pytest.mark.slow
def test_a_byte_flipped_on_the_way_is_noticed(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled_on_the_way(monkeypatch, FLIP)
    assert f"1 of {NUM_FILES} files with other content" in cohort.failed()
    assert not list((cohort.workdir / STORE).glob("*/lists/*/*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [FLIP.replace("d[-100] ^= 1", "del d[-5000:]"), "import sys; sys.stdin.buffer.read(9999)"]
)
def test_a_stream_that_ends_too_soon_is_no_copy(cohort: Cohort, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    spoiled_on_the_way(monkeypatch, script)
    assert "broke off" in cohort.failed()


@pytest.mark.slow
def test_a_program_that_dies_there_in_the_middle(cohort: Cohort) -> None:
    cohort.at.replace(
        "python3", 'case "$*" in *" receive-tree "*) head -c 90000 >/dev/null; exit 9 ;; esac; exec "$real" "$@"'
    )
    assert "(exit status 9)" in cohort.failed()


def changing(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch, packing: list[str] | None, content: bytes = b"another" * 100
) -> list[int]:
    """A file changes after it was looked at; and what was sent in the first try."""
    piece, tries = TreeStream.by_this_machine, list[int]()

    def changed(*given: Any) -> Any:
        tries.append(len(tries))
        made = piece(*given)
        if len(tries) == 1:
            (cohort.folder / f"{PATIENT} 0" / "0").write_bytes(content)
            return made if packing is None else replace(made, packing=packing)
        return made

    monkeypatch.setattr(TreeStream, "by_this_machine", changed)
    return tries


@pytest.mark.slow
@pytest.mark.parametrize(("num_bytes", "tries"), [(400, [0]), (399, [0]), (5000, [0, 1])])
def test_a_file_that_changed_before_it_was_sent_arrives_as_it_is(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch, num_bytes: int, tries: list[int]
) -> None:
    """More than there was is refused, whoever sends it."""
    made = changing(cohort, monkeypatch, None, b"x" * num_bytes)
    cohort.send()
    assert made == tries


@pytest.mark.slow
def test_what_changes_while_it_is_read_is_sent_again(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = changing(cohort, monkeypatch, ["sh", "-c", "exit 1"])
    cohort.send()
    assert tries == [0, 1]


def test_who_reads_notices_who_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a"
    file.write_bytes(b"1" * 1000)
    real = os.read

    def read(at: int, most: int) -> bytes:
        found = real(at, most)
        with file.open("r+b") as other:
            other.write(b"2")
        return found

    monkeypatch.chdir("/")
    with (tmp_path / "out").open("wb") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert tree_stream.send(str(tmp_path / "data"), str(tmp_path / "note")) == 0
        monkeypatch.setattr(os, "read", read)
        assert tree_stream.send(str(tmp_path / "data"), str(tmp_path / "other")) == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_file_that_may_not_be_read(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = TreeStream.by_this_machine

    def unreadable(*given: Any) -> Any:
        made = piece(*given)
        return replace(made, packing=["sh", "-c", "echo 'Permission denied' >&2; exit 1"])

    monkeypatch.setattr(TreeStream, "by_this_machine", unreadable)
    monkeypatch.setattr(
        manifest, "command", lambda *_, **__: ["( echo 'Permission denied'; exit 1 )"]
    )  # so would the listing say
    cohort.failed(SourceUnreadable)


@pytest.mark.slow
def test_a_connection_that_is_lost_goes_on(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort.at.replace("tar", 'exec "$real" "$@"')  # what is missing goes by tar
    whole = transcoding.Transcoder._read
    cut = list[int]()

    async def lost(self: Any, read: Any, buffer_bytes: int) -> Any:
        async for data, wire_bytes in whole(self, read, buffer_bytes):
            half = data[: len(data) // 2]
            yield (data if cut else half), wire_bytes
            if not cut:
                cut.append(1)
                await asyncio.sleep(0.3)
                raise ConnectionResetError

    monkeypatch.setattr(transcoding.Transcoder, "_read", lost)
    cohort.send()
    assert cut == [1]
