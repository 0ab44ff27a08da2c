"""Copies of many files and of large files as a tree stream over real ssh: either complete or absent."""

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
from support.transfers import TransferSites, transfer_sites

PATIENT = "Mustermann_Erika_1970"
NUM_FILES = 300


class Cohort:
    """A folder of many files that is copied to a site with a store."""

    def __init__(self, at: TransferSites, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.folder, self.workdir = at, at.source / "cohort", workdir
        self.transfer: dict[str, Any] = {}
        for number in range(NUM_FILES):
            file = self.folder / f"{PATIENT} {number % 3}" / f"{number}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(number.to_bytes(2, "big") * 200)
        run = SimpleNamespace(
            run_id="run-1",
            transfer_ended=lambda **facts: self.transfer.update(facts),
            deployment_notice=lambda *_: None,
        )
        monkeypatch.setattr(manager, "current", lambda: run)
        monkeypatch.setattr(router, "SMALL_BYTES", 0)
        at.target = workdir / "run-1" / "job"
        at.target.mkdir(parents=True)
        at.replace("tar", "exit 2")

    def send(self, **options: bool) -> None:
        self.at.run_connected(lambda sites: sites.send("from-driver", "cohort", **options))
        self.assert_arrived()

    def assert_arrived(self) -> None:
        expected, arrived = listed(self.folder), listed(self.at.target / "cohort")
        assert expected.difference(arrived) == ""
        assert self.transfer["num_files"] == expected.num_files

    def assert_failed(self, kind: type[TransferFailed] = TransferFailed) -> str:
        with pytest.raises(kind) as raised:
            self.at.run_connected(lambda sites: sites.send("from-driver", "cohort"))
        assert type(raised.value) is kind
        assert PATIENT not in str(raised.value)
        assert self.at.target_names() == []
        return str(raised.value)


@pytest.fixture
def cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cohort]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with transfer_sites(tmp_path) as at:
        yield Cohort(at, tmp_path / "work", monkeypatch)


def change_stream(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Pipe the stream of a copy through a Python script."""
    piece = TreeStream.by_this_machine

    def through(*arguments: Any) -> Any:
        stream = piece(*arguments)
        line = f"{shlex.join(stream.packing)} | {shlex.join([sys.executable, '-c', script])}"
        return replace(stream, packing=["sh", "-c", line])

    monkeypatch.setattr(TreeStream, "by_this_machine", through)


FLIP = "import sys; d = bytearray(sys.stdin.buffer.read()); d[-100] ^= 1; sys.stdout.buffer.write(d)"


@pytest.mark.slow
def test_many_files_are_copied_and_stored_without_tar(cohort: Cohort) -> None:
    cohort.send()
    trees = (cohort.workdir / STORE).glob
    wait_until(lambda: [file for file in trees("*/lists/*/*") if not file.name.endswith(".new")] != [])
    (tree,) = (file for file in trees("*/lists/*/*") if file.is_file())
    assert hashlib.sha256(tree.read_bytes()).hexdigest() == tree.parent.name + tree.name
    assert {file.stat().st_mode & 0o222 for file in cohort.at.target.rglob("*") if file.is_file()} == {0}
    names = {file.stat().st_nlink for file in cohort.at.target.rglob("*") if file.is_file()}
    assert names == {2}, "a link in the copy and one in the store"


@pytest.mark.slow
def test_codecs_are_queried_during_the_local_scan(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    probed, scan, query_codecs = threading.Event(), local_scan.scan, router.Router.query_codecs

    def slow(path: str) -> manifest.Manifest | None:
        assert probed.wait(20)
        return scan(path)

    async def query(*arguments: Any) -> None:
        probed.set()
        await query_codecs(*arguments)

    monkeypatch.setattr(local_scan, "scan", slow)
    monkeypatch.setattr(router.Router, "query_codecs", query)
    cohort.send()


@pytest.mark.slow
def test_a_second_copy_waits_for_the_tree_of_the_first(cohort: Cohort) -> None:
    cohort.at.replace("nice", 'sleep 1; exec "$@"')
    cohort.send()
    assert [file.suffix for file in (cohort.workdir / STORE).glob("*/lists/*/*")] == [".new"]
    cohort.at.target = cohort.workdir / "run-1" / "other"
    cohort.at.target.mkdir()
    cohort.at.run_connected(lambda sites: sites.send("from-driver", "cohort"))
    assert cohort.transfer["num_bytes"] == 0


@pytest.mark.slow
def test_a_copy_does_not_wait_for_an_abandoned_tree(cohort: Cohort) -> None:
    cohort.at.replace("nice", "exit 1")
    cohort.send()
    (waiting,) = (cohort.workdir / STORE).glob("*/lists/*/*")
    os.utime(waiting, (1, 1))
    cohort.at.replace("nice", 'exec "$@"')
    cohort.at.target = cohort.workdir / "run-1" / "other"
    cohort.at.target.mkdir()
    cohort.at.run_connected(lambda sites: sites.send("from-driver", "cohort"))
    assert cohort.transfer["num_bytes"] > 0
    wait_until(lambda: not waiting.exists())
    assert waiting.with_suffix("").exists()


@pytest.mark.slow
def test_a_writable_copy_shares_no_files(cohort: Cohort) -> None:
    cohort.send(writable=True)
    files = [file for file in (cohort.at.target / "cohort").rglob("*") if file.is_file()]
    assert {file.stat().st_mode & 0o200 for file in files} == {0o200}
    assert {file.stat().st_nlink for file in files} == {1}


@pytest.mark.slow
def test_a_read_only_folder_stays_read_only(cohort: Cohort) -> None:
    (cohort.folder / f"{PATIENT} 1").chmod(0o555)
    cohort.at.replace("tar", 'exec "$real" "$@"')  # tar sets the mode after the files
    cohort.send()
    assert (cohort.at.target / "cohort" / f"{PATIENT} 1").stat().st_mode & 0o777 == 0o555


@pytest.mark.slow
def test_many_small_files_use_tar_after_a_larger_copy(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's codecs are queried once. A small copy does not query them, and sends no encoded blocks."""
    cohort.at.replace("tar", 'exec "$real" "$@"')
    shutil.copytree(cohort.folder, cohort.at.source / "second")

    async def act(sites: TransferSites) -> None:
        sites.manager._store_gib = 0  # otherwise the files would be linked
        await sites.send("from-driver", "cohort")
        monkeypatch.setattr(router, "SMALL_BYTES", 2**30)
        await sites.send("from-driver", "second")

    cohort.at.run_connected(act)
    assert listed(cohort.folder).difference(listed(cohort.at.target / "second")) == ""


def test_a_file_that_became_a_pipe_does_not_block_the_sender(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(tree_stream.TreeNotSent, match="changed while it was read"):
        list(tree_stream.TreeSender(os.fsencode(tmp_path / "pipe")).pieces())


def large(cohort: Cohort) -> Path:
    """Replace the many files by a large one and a small one."""
    shutil.rmtree(cohort.folder)
    cohort.folder.mkdir()
    (cohort.folder / "small").write_bytes(b"small")
    file = cohort.folder / "large"
    file.write_bytes(os.urandom(tree_stream_piece.LARGE_BYTES))
    return file


@pytest.mark.slow
def test_large_files_are_copied_and_stored_without_tar(cohort: Cohort) -> None:
    large(cohort)
    cohort.send()
    assert {file.stat().st_nlink for file in cohort.at.target.rglob("*") if file.is_file()} == {2}
    before = cohort.at.target
    cohort.at.target = cohort.workdir / "run-1" / "other"
    cohort.at.target.mkdir()
    cohort.at.replace("tar", 'exec "$real" "$@"')  # tar links small numbers of files
    cohort.at.run_connected(lambda sites: sites.send("from-driver", "cohort"))
    assert (cohort.at.target / "cohort" / "large").samefile(before / "cohort" / "large")
    assert cohort.transfer["num_bytes"] == 0


@pytest.mark.slow
def test_a_single_large_file_is_copied(cohort: Cohort) -> None:
    file = large(cohort)
    cohort.at.run_connected(lambda sites: sites.send("from-driver", "cohort/large"))
    (copy,) = (file for file in cohort.at.target.rglob("*") if file.is_file())
    assert copy.read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_a_flipped_byte_of_a_large_file_is_detected(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    large(cohort)
    change_stream(monkeypatch, FLIP.replace("-100", "-99999"))
    assert "1 of 2 files with other content" in cohort.assert_failed()


@pytest.mark.slow
def test_a_flipped_byte_is_detected(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    change_stream(monkeypatch, FLIP)
    assert f"1 of {NUM_FILES} files with other content" in cohort.assert_failed()
    assert not list((cohort.workdir / STORE).glob("*/lists/*/*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [FLIP.replace("d[-100] ^= 1", "del d[-5000:]"), "import sys; sys.stdin.buffer.read(9999)"]
)
def test_a_truncated_stream_leaves_no_copy(cohort: Cohort, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    change_stream(monkeypatch, script)
    assert "broke off" in cohort.assert_failed()


@pytest.mark.slow
def test_a_killed_receiver_leaves_no_copy(cohort: Cohort) -> None:
    cohort.at.replace(
        "python3", 'case "$*" in *" receive-tree "*) head -c 90000 >/dev/null; exit 9 ;; esac; exec "$real" "$@"'
    )
    assert "(exit status 9)" in cohort.assert_failed()


def changing(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch, packing: list[str] | None, content: bytes = b"another" * 100
) -> list[int]:
    """Change a file after the scan, and replace the sender of the first attempt. Return the list of attempts."""
    piece, tries = TreeStream.by_this_machine, list[int]()

    def changed(*arguments: Any) -> Any:
        tries.append(len(tries))
        stream = piece(*arguments)
        if len(tries) == 1:
            (cohort.folder / f"{PATIENT} 0" / "0").write_bytes(content)
            return stream if packing is None else replace(stream, packing=packing)
        return stream

    monkeypatch.setattr(TreeStream, "by_this_machine", changed)
    return tries


@pytest.mark.slow
@pytest.mark.parametrize(("num_bytes", "tries"), [(400, [0]), (399, [0]), (5000, [0, 1])])
def test_a_file_that_changed_after_the_scan_is_copied_with_its_new_content(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch, num_bytes: int, tries: list[int]
) -> None:
    """The receiver refuses more bytes than the scan found, so a file that grew takes a second attempt."""
    attempts = changing(cohort, monkeypatch, None, b"x" * num_bytes)
    cohort.send()
    assert attempts == tries


@pytest.mark.slow
def test_a_source_that_changes_during_the_copy_is_sent_again(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = changing(cohort, monkeypatch, ["sh", "-c", "exit 1"])
    cohort.send()
    assert tries == [0, 1]


def test_the_sender_detects_writes_to_a_file_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a"
    file.write_bytes(b"1" * 1000)
    real = os.read

    def read(at: int, most: int) -> bytes:
        data = real(at, most)
        with file.open("r+b") as other:
            other.write(b"2")
        return data

    monkeypatch.chdir("/")
    with (tmp_path / "out").open("wb") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert tree_stream.send(str(tmp_path / "data"), str(tmp_path / "note")) == 0
        monkeypatch.setattr(os, "read", read)
        assert tree_stream.send(str(tmp_path / "data"), str(tmp_path / "other")) == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_an_unreadable_file_fails_the_copy(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = TreeStream.by_this_machine

    def unreadable(*arguments: Any) -> Any:
        stream = piece(*arguments)
        return replace(stream, packing=["sh", "-c", "echo 'Permission denied' >&2; exit 1"])

    monkeypatch.setattr(TreeStream, "by_this_machine", unreadable)
    monkeypatch.setattr(
        manifest, "command", lambda *_, **__: ["( echo 'Permission denied'; exit 1 )"]
    )  # as the listing would report
    cohort.assert_failed(SourceUnreadable)


@pytest.mark.slow
def test_a_lost_connection_is_resumed(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort.at.replace("tar", 'exec "$real" "$@"')  # the missing parts are sent by tar
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
