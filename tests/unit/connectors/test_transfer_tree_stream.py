"""The tree stream: the sender and receiver that replace tar for many files and refuse hostile streams."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer.agent import files as agent_files
from medweave_connectors.transfer.agent import program_text, tree_stream
from medweave_connectors.transfer.agent.tree_stream import END, FILE, FOLDER, HEAD, TreeReceiver, TreeRefused
from medweave_connectors.transfer.manifest import local_scan, manifest, tree_digest
from medweave_connectors.transfer.streams import tree_stream_piece
from medweave_connectors.transfer.streams.tree_stream_piece import TreeStream
from support.listings import listed, run_shell
from support.old_python import assert_is_python

NAMES = st.text(
    st.characters(exclude_characters="/\0\\\n\r", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in {".", ".."})
FILES = st.dictionaries(NAMES, st.tuples(st.binary(max_size=60), st.sampled_from([0o644, 0o755, 0o400])), max_size=5)


def sent(folder: Path, note: Path) -> bytes:
    words = TreeStream(str(folder), "/nowhere", 0, None).by_this_machine(note).packing
    return subprocess.run(words, capture_output=True, check=True).stdout


def receive(stream: bytes, target: Path, *, size: int, most_bytes: int, blobs: Path | None) -> None:
    """Receive a stream in pieces of a size, and write the receiver's note."""
    note = os.fsencode(target.with_name("note"))
    receiver = TreeReceiver(os.fsencode(target), note, most_bytes, b"" if blobs is None else os.fsencode(blobs))
    for begins in range(0, len(stream), size):
        receiver.take(stream[begins : begins + size])
    receiver.end()


def written(root: Path, files: dict[str, tuple[bytes, int]], folders: set[str]) -> None:
    for folder in {"sub", *folders - files.keys()}:
        (root / folder).mkdir(parents=True, mode=0o750)
    for name, (content, mode) in files.items():
        at = root / "sub" / name
        at.write_bytes(content)
        at.chmod(mode)
        os.utime(at, ns=(10**18 + 7, 10**18 + 7))


# ---- scan of this machine


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(files=FILES, folders=st.sets(NAMES, max_size=2))
def test_the_local_scan_equals_the_shell_listing(files: dict[str, tuple[bytes, int]], folders: set[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "root")
        written(root, files, folders)
        (root / "to a folder").symlink_to("sub")
        for number, file in enumerate(files):
            (root / f"link {number}").symlink_to(f"sub/{file}")
        expected = manifest.parse(run_shell(manifest.command(str(root), digests=False)), digests=False)
        assert local_scan.scan(str(root)) == expected


def dangling(root: Path) -> None:
    (root / "link").symlink_to("nothing")


def loop(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "link").symlink_to("..")


def special(root: Path) -> None:
    os.mkfifo(root / "pipe")


@pytest.mark.parametrize("make", [dangling, loop, special])
def test_the_local_scan_refuses_unusual_entries(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "file").touch()
    assert local_scan.scan(str(tmp_path)) is not None
    make(tmp_path)
    assert local_scan.scan(str(tmp_path)) is None
    assert local_scan.scan(str(tmp_path / "file")) is None
    assert local_scan.scan(str(tmp_path / "nothing")) is None


# ---- the stream


def test_the_program_for_sites_is_valid_in_old_python_versions() -> None:
    assert_is_python(program_text.of("stream_peer"))
    assert "import medweave" not in program_text.of("stream_peer")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(files=FILES, folders=st.sets(NAMES, max_size=2), size=st.integers(1, 200), keeps=st.booleans())
def test_a_received_tree_equals_the_sent_tree(
    files: dict[str, tuple[bytes, int]], folders: set[str], size: int, keeps: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_digest, "MANY", 0)
        patch.chdir("/")  # the receiver changes its working directory
        root, target, blobs = Path(name, "root"), Path(name, "target"), Path(name, "blobs")
        written(root, files, folders)
        stream = sent(root, Path(name, "sent"))
        receive(stream, target, size=size, most_bytes=1000, blobs=blobs if keeps else None)
        expected, received = listed(root), listed(target)
        assert expected.difference(received) == ""
        assert [entry.modified_s for entry in received.entries.values() if entry.sha256] == [10**9] * len(files)
        mode_mask = 0o555 if keeps else 0o777
        assert {path: entry.mode & mode_mask for path, entry in received.entries.items()} == {
            path: (entry.mode if entry.kind == manifest.Kind.FOLDER else entry.mode & mode_mask) & mode_mask
            for path, entry in expected.entries.items()
        }
        parsed = tree_stream_piece.parse_listing(Path(name, "sent").read_bytes(), replace(expected, entries={
            path: entry._replace(sha256="") for path, entry in expected.entries.items()
        }))  # fmt: skip
        assert parsed == expected
        assert tree_stream_piece.sent_digest(Path(name, "sent").read_bytes()) == tree_digest.listing_digest(expected)
        assert hashlib.sha256(Path(name, "note").read_bytes()).hexdigest() == tree_digest.listing_digest(expected)
        if keeps:
            contents = {file.read_bytes() for file in blobs.rglob("*") if file.is_file()}
            assert contents == {content for content, _ in files.values()}


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    content=st.binary(max_size=300), size=st.integers(1, 200), mode=st.sampled_from([0o644, 0o755]), keeps=st.booleans()
)
def test_a_single_file_is_received(content: bytes, size: int, mode: int, keeps: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, target, blobs = Path(name, "scan\xfc .nii"), Path(name, "target"), Path(name, "blobs")
        root.write_bytes(content)
        root.chmod(mode)
        stream = sent(root, Path(name, "sent"))
        receive(stream, target, size=size, most_bytes=300, blobs=blobs if keeps else None)
        assert target.read_bytes() == content
        assert target.stat().st_mode & 0o777 == (mode & 0o555 if keeps else mode)
        expected = listed(root)
        seen = replace(expected, entries={path: entry._replace(sha256="") for path, entry in expected.entries.items()})
        noted = Path(name, "sent").read_bytes()
        assert tree_stream_piece.parse_listing(noted, seen) == expected
        assert tree_stream_piece.sent_digest(noted) == hashlib.sha256(Path(name, "note").read_bytes()).hexdigest()
        if keeps:
            (blob,) = (file for file in blobs.rglob("*") if file.is_file())
            assert blob.samefile(target)


def test_files_of_all_sizes_around_a_block_are_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_stream, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(tree_stream, "WRITE_BYTES", 300)
    monkeypatch.setattr(tree_stream, "FLUSH_BYTES", 500)
    monkeypatch.chdir("/")
    for number, size in enumerate((0, 1, 999, 1000, 1001, 5000, 2999)):
        (tmp_path / "root").mkdir(exist_ok=True)
        (tmp_path / "root" / str(number)).write_bytes(os.urandom(size))
    sender = tree_stream.TreeSender(os.fsencode(tmp_path / "root"))
    pieces = list(sender.pieces())
    assert max(map(len, pieces)) <= 1000
    tree_stream.receive_tree(pieces, str(tmp_path / "to"), str(tmp_path / "note"), 20_000, "")
    assert listed(tmp_path / "root").difference(listed(tmp_path / "to")) == ""
    assert (tmp_path / "note").read_bytes() == sender.tree


def test_short_reads_do_not_change_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scan").write_bytes(os.urandom(5000))
    monkeypatch.setattr(tree_stream, "BLOCK_BYTES", 1000)
    whole = b"".join(tree_stream.TreeSender(os.fsencode(tmp_path / "scan")).pieces())
    read, lengths = os.read, iter([1000, 300, 1000, 700])
    monkeypatch.setattr(os, "read", lambda file, most: read(file, min(most, next(lengths, most))))
    assert b"".join(tree_stream.TreeSender(os.fsencode(tmp_path / "scan")).pieces()) == whole


def test_a_write_error_that_is_reported_once_fails_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = threading.Event()

    class Library:
        def syncfs(self, _: int) -> int:
            called.set()
            ctypes.set_errno(errno.EIO)
            return -1

    monkeypatch.setattr(tree_stream, "FLUSH_BYTES", 5)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library())
    monkeypatch.chdir(tmp_path)
    stream = entry(FOLDER, b".") + entry(FILE, b"./a", b"12345") + HEAD.pack(END, 0, 0, 0, 0)
    with pytest.raises(TreeRefused, match="cannot be written") as raised:
        tree_stream.receive_tree([stream], str(tmp_path / "to"), str(tmp_path / "note"), 5, "")
    assert called.is_set()
    assert raised.value.system_message == os.strerror(errno.EIO)
    assert not (tmp_path / "note").exists()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_malformed_listing_of_a_sender_is_ignored(data: st.DataObject) -> None:
    """The sender's listing may be malformed: then it is ignored, and both sides are read."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "root")
        written(root, {"a": (b"1", 0o644), "b": (b"22", 0o755)}, {"c"})
        seen = manifest.parse(run_shell(manifest.command(str(root), digests=False)), digests=False)
    sender = b"3\n" + agent_files.text_of(
        [b"1" * 64 + b"- ./sub/a", b"2" * 64 + b"x ./sub/b"], [b"0755 .", b"0750 ./c", b"0750 ./sub"]
    )
    assert tree_stream_piece.parse_listing(sender, seen) is not None
    broken = bytearray(sender)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read = tree_stream_piece.parse_listing(bytes(broken), seen)
    assert read is None or read.entries.keys() == seen.entries.keys()
    assert tree_stream_piece.parse_listing(b"", seen) is None


def entry(kind: int, name: bytes, content: bytes = b"", mode: int = 0o755) -> bytes:
    return HEAD.pack(kind, len(name), mode, 0, len(content)) + name + content


TOP = entry(FOLDER, b".")
LAST = HEAD.pack(END, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "stream",
    [
        TOP + entry(FILE, b"/tmp/medweave-hostile", b"x"),
        TOP + entry(FILE, b"../hostile", b"x"),
        TOP + entry(FOLDER, b"a") + entry(FILE, b"a/../../hostile", b"x"),
        TOP + entry(FOLDER, b".."),
        TOP + entry(FILE, b"set-uid", b"x", mode=0o104755),
        TOP + entry(7, b"device"),
        TOP + entry(FILE, b"two\nlines", b"x"),
        entry(FILE, b"hostile", b"x"),
        TOP + entry(FILE, b"large", bytes(1001)),
        TOP + entry(FILE, b"a", bytes(600)) + entry(FILE, b"b", bytes(600)),
        TOP + entry(FILE, b"in\0between", b"x"),
        TOP + LAST + entry(FILE, b"later", b"x"),
    ],
)
def test_a_hostile_stream_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TreeRefused):
        tree_stream.receive_tree([stream], str(tmp_path / "at"), str(tmp_path / "note"), 1000, "")
    assert not (tmp_path / "note").exists()
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} <= {"a"}
    assert not Path("/tmp/medweave-hostile").exists()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), pieces=st.lists(st.binary(max_size=80), max_size=4))
def test_no_stream_writes_outside_its_folder(data: st.DataObject, pieces: list[bytes]) -> None:
    good = TOP + entry(FOLDER, b"./a") + entry(FILE, b"./a/b", b"content") + LAST
    broken = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        inside = Path(name, "in")
        inside.mkdir()
        try:
            tree_stream.receive_tree([bytes(broken), *pieces], str(inside / "at"), str(inside / "note"), 1000, "")
        except TreeRefused:
            assert not (inside / "note").exists()
        assert [file.name for file in Path(name).iterdir()] == ["in"]
        assert {file.name for file in inside.iterdir()} <= {"at", "note"}
